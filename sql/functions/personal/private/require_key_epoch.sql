-- Raises that a client has other keys than those that wrap now.
create or replace function event_store_private.require_key_epoch(
  v_epoch int,
  v_fingerprint text
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _last event_store_keys.epochs;
begin
  select e.* into _last from event_store_keys.epochs e order by e.epoch desc limit 1;
  if _last.epoch is null or (_last.epoch, _last.fingerprint) is distinct from (v_epoch, v_fingerprint) then
    perform event_store_private.refuse_request(
      case
        when _last.epoch is null then 'the store has no epoch of keys'
        else format('the keys are of epoch %s with fingerprint %s; the store''s are of epoch %s with fingerprint %s',
          v_epoch, left(v_fingerprint, 8), _last.epoch, left(_last.fingerprint, 8))
      end,
      'Use the folder of keys that belongs to this store; `millrace privacy begin` makes the first one.'
    );
  end if;
end
$$;

comment on function event_store_private.require_key_epoch(int, text) is
'Raises MR005 if a client''s keys are not those of the store''s last epoch.';
