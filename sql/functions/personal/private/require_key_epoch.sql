-- Raises that a client has other keys than those that wrap now.
-- Races: begin_key_epoch waits until the calling transaction has ended. One with an older snapshot than the epoch fails
-- at the changed row: so nothing is wrapped by an earlier key once an epoch has begun.
create or replace function event_store_private.require_key_epoch(
  v_epoch int,
  v_fingerprint text
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _last event_store_keys.epochs;
begin
  perform from event_store_keys.epochs e where e.epoch = (select max(o.epoch) from event_store_keys.epochs o) for share;
  -- read anew: an epoch may have begun while it waited
  select e.* into _last from event_store_keys.epochs e order by e.epoch desc limit 1;
  if _last.epoch is null then
    perform event_store_private.refuse_request('the store has no epoch of keys', '`millrace privacy init` makes the first one.');
  end if;
  if (_last.epoch, _last.fingerprint) is distinct from (v_epoch, v_fingerprint) then
    raise exception 'keys are of another epoch'
      using
        errcode = 'MR055',
        detail = format('the keys are of epoch %s with fingerprint %s; the store''s are of epoch %s with fingerprint %s',
          v_epoch, left(v_fingerprint, 8), _last.epoch, left(_last.fingerprint, 8)),
        hint = 'Use the newest files of the folder of keys that belongs to this store.';
  end if;
end
$$;

comment on function event_store_private.require_key_epoch(int, text) is
'Raises MR055 if a client''s keys are not those of the store''s last epoch, MR005 if it has none.';
