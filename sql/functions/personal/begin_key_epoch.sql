-- Races: it waits for the transactions that make keys, and later ones see the new epoch (require_key_epoch).
-- Example: select begin_key_epoch(1, '9f86d081…')
create or replace function event_store_platform.begin_key_epoch(
  v_epoch int,
  v_fingerprint text
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _last event_store_keys.epochs;
begin
  lock table event_store_keys.epochs in exclusive mode;
  select e.* into _last from event_store_keys.epochs e order by e.epoch desc limit 1;
  if _last.epoch = v_epoch and _last.fingerprint = v_fingerprint then
    return;
  end if;
  if v_fingerprint is null or v_fingerprint !~ '^[0-9a-f]{64}$' or v_epoch is distinct from coalesce(_last.epoch, 0) + 1 then
    perform event_store_private.refuse_request(
      format('epoch %s with fingerprint %s does not follow epoch %s', v_epoch, left(v_fingerprint, 64), coalesce(_last.epoch, 0)),
      'Use the folder of keys that belongs to this store; the next epoch has the next number.'
    );
  end if;
  update event_store_keys.epochs e set began_at = e.began_at where e.epoch = _last.epoch; -- for require_key_epoch
  insert into event_store_keys.epochs (epoch, fingerprint, began_at) values (v_epoch, v_fingerprint, event_store_private.clock());
  -- a store without personal data does not show the decider
  insert into event_store.deciders (decider, event, description, owner, registered_by)
  values (
    'privacy', 'subject_forgotten', 'The key of a person was destroyed: what it sealed cannot be read any more.', 'event_store_owner',
    'event_store_owner'
  )
  on conflict do nothing;
  perform event_store_private.audit('begin_key_epoch', null, null, jsonb_build_object('epoch', v_epoch));
end
$$;

comment on function event_store_platform.begin_key_epoch(int, text) is
'Lets the key of an epoch wrap the keys of people from now on; repeating the call changes nothing. MR005 the epoch does not '
'follow the last one, or has other files.';
revoke all on function event_store_platform.begin_key_epoch(int, text) from public;
grant execute on function event_store_platform.begin_key_epoch(int, text) to event_store_owner;
