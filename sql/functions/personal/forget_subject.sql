-- The row stays: what comes of the subject later is stored without content, until it is admitted again.
-- Races: an append that began before may store a value that the key sealed; nothing opens it.
-- Example: select * from forget_subject(mac, 'request 812')
create or replace function event_store_platform.forget_subject(
  v_subject_mac bytea,
  v_reason text
)
returns table (
  key_id text,
  epoch int,
  forgotten_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _key event_store_keys.subject_keys;
begin
  select k.* into _key from event_store_keys.subject_keys k where k.subject_mac = v_subject_mac for update;
  if _key.key_id is null then
    raise exception 'subject has no key'
      using
        errcode = 'MR056',
        detail = 'Nothing was ever sealed for it with the keys of this store, or it was admitted again and nothing since.',
        hint = 'A subject is written as <kind>:<id>, such as customer:c-7, exactly as its events have the id.';
  end if;
  if _key.forgotten_at is null then
    _key.forgotten_at := event_store_private.clock();
    update event_store_keys.subject_keys k set wrapped = null, forgotten_at = _key.forgotten_at where k.key_id = _key.key_id;
    perform event_store_private.append_batch(array[row(
      1, 'subject_forgotten', gen_random_uuid(), 1, 'privacy', _key.key_id, jsonb_build_object('key_ids', jsonb_build_array(_key.key_id)),
      gen_random_uuid(), null, false, false, null, null
    )::event_store_private.batch_event]);
    perform event_store_private.audit('forget_subject', null, v_reason, jsonb_build_object('key_id', _key.key_id));
  end if;
  return query select _key.key_id, _key.epoch, _key.forgotten_at;
end
$$;

comment on function event_store_platform.forget_subject(bytea, text) is
'Destroys the key of a subject in this database, and returns its name, the epoch that wrapped it and since when it is gone; '
'repeating the call changes nothing. Audited with v_reason, by the key''s name; the decider privacy gets an event. MR056 the subject has no key.';
revoke all on function event_store_platform.forget_subject(bytea, text) from public;
grant execute on function event_store_platform.forget_subject(bytea, text) to event_store_owner;
