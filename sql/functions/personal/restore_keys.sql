-- After a return to an earlier time: the epoch may be several later than the store's last.
-- Example: select restore_keys(3, '9f86d081…', array[key_id], array[wrapped], array[forgotten])
create or replace function event_store_platform.restore_keys(
  v_epoch int,
  v_fingerprint text,
  v_key_ids text[],
  v_wrapped bytea[],
  v_forgotten text[]
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _forgotten bigint;
begin
  lock table event_store_keys.epochs in exclusive mode; -- as begin_key_epoch
  if v_epoch > (select max(e.epoch) from event_store_keys.epochs e) then
    update event_store_keys.epochs e set began_at = e.began_at; -- for require_key_epoch
    insert into event_store_keys.epochs (epoch, fingerprint, began_at) values (v_epoch, v_fingerprint, event_store_private.clock());
  end if;
  perform from event_store_platform.wrap_keys(v_epoch, v_fingerprint, v_key_ids, v_wrapped, 0);
  update event_store_keys.subject_keys k
  set wrapped = null, forgotten_at = event_store_private.clock()
  where k.key_id = any (v_forgotten) and k.forgotten_at is null;
  get diagnostics _forgotten = row_count;
  perform event_store_private.audit('restore_keys', null, null, jsonb_build_object('epoch', v_epoch, 'forgotten', _forgotten));
  return _forgotten;
end
$$;

comment on function event_store_platform.restore_keys(int, text, text[], bytea[], text[]) is
'Lets a restored store have its keys as the folder of keys has them: as its last epoch wraps them, without those that were '
'forgotten since; returns how many these are. MR055 the store has a later epoch, or another one.';
revoke all on function event_store_platform.restore_keys(int, text, text[], bytea[], text[]) from public;
grant execute on function event_store_platform.restore_keys(int, text, text[], bytea[], text[]) to event_store_owner;
