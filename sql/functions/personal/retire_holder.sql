-- The operator says so: a folder that is in use after all is noted again.
-- Example: select retire_holder('app-1', '/run/millrace/keys', 'the machine was scrapped')
create or replace function event_store_platform.retire_holder(
  v_host text,
  v_folder text,
  v_reason text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _holder event_store_keys.holders;
begin
  delete from event_store_keys.holders h where h.host = v_host and h.folder = v_folder returning h.* into _holder;
  if _holder.host is null then
    return false;
  end if;
  perform event_store_private.audit('retire_holder', null, v_reason, to_jsonb(_holder));
  perform event_store_private.confirm_key_epochs();
  return true;
end
$$;

comment on function event_store_platform.retire_holder(text, text, text) is
'Takes a folder of keys off the holders, whose copies are destroyed, audited with v_reason; false if there is none.';
revoke all on function event_store_platform.retire_holder(text, text, text) from public;
grant execute on function event_store_platform.retire_holder(text, text, text) to event_store_owner;
