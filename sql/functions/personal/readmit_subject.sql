-- Example: select readmit_subject(mac, 'came back, see ticket 90')
create or replace function event_store_platform.readmit_subject(
  v_subject_mac bytea,
  v_reason text
)
returns text
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _key_id text;
begin
  update event_store_keys.subject_keys k
  set subject_mac = null
  where k.subject_mac = v_subject_mac and k.forgotten_at is not null
  returning k.key_id into _key_id;
  if _key_id is not null then
    perform event_store_private.audit('readmit_subject', null, v_reason, jsonb_build_object('key_id', _key_id));
  end if;
  return _key_id;
end
$$;

comment on function event_store_platform.readmit_subject(bytea, text) is
'Lets a forgotten subject get a new key, and returns the name of the forgotten one, which stays forgotten; null if the subject '
'was not forgotten. Audited with v_reason.';
revoke all on function event_store_platform.readmit_subject(bytea, text) from public;
grant execute on function event_store_platform.readmit_subject(bytea, text) to event_store_owner;
