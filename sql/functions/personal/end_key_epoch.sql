-- Example: select end_key_epoch(1)
create or replace function event_store_platform.end_key_epoch(
  v_epoch int
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if not exists (select from event_store_keys.epochs e where e.epoch > v_epoch)
    or exists (select from event_store_keys.subject_keys k where k.epoch <= v_epoch and k.wrapped is not null)
  then
    perform event_store_private.refuse_request(
      format('v_epoch is %s, which wraps keys', v_epoch), 'Begin the next epoch, and wrap all keys anew by it.'
    );
  end if;
  update event_store_keys.epochs e
  set destroyed_at = event_store_private.clock()
  where e.epoch <= v_epoch and e.destroyed_at is null;
  if found then
    perform event_store_private.audit('end_key_epoch', null, null, jsonb_build_object('epoch', v_epoch));
    perform event_store_private.confirm_key_epochs();
  end if;
end
$$;

comment on function event_store_platform.end_key_epoch(int) is
'Notes that the files of an epoch and of those before are destroyed; repeating the call changes nothing. MR005 it wraps keys.';
revoke all on function event_store_platform.end_key_epoch(int) from public;
grant execute on function event_store_platform.end_key_epoch(int) to event_store_owner;
