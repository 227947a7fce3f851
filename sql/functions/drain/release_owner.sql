-- It writes a row into audit_log for each view.
create or replace function event_store_platform.release_owner(
  v_owner text
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _released record;
  _leases bigint := 0;
begin
  for _released in
    with released as (
      update event_store.checkpoints c
      set lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false, revision = c.revision + 1
      from event_store.views v
      where c.lease_owner = v_owner and v.view = c.view and event_store_private.may_use(v.owner)
      returning c.view, c.partition
    )
    select view, array_agg(partition order by partition) as partitions from released group by view order by view
  loop
    perform event_store_private.audit(
      'release_owner', _released.view, null, jsonb_build_object('owner', v_owner, 'partitions', _released.partitions)
    );
    _leases := _leases + cardinality(_released.partitions);
  end loop;
  return _leases;
end
$$;

comment on function event_store_platform.release_owner(text) is
'Releases every lease of v_owner, in all views that the caller may use, and returns how many: for a run that is known '
'to be dead. Audited.';
revoke all on function event_store_platform.release_owner(text) from public;
grant execute on function event_store_platform.release_owner(text) to event_store_consumer, event_store_owner;
