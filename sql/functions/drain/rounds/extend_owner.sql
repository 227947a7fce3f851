-- It skips a lease that is being committed; that commit ends the lease.
-- Example: select extend_owner('run-7', 60)
create or replace function event_store_platform.extend_owner(
  v_owner text,
  v_lease_s bigint
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
declare
  _now timestamptz;
  _locked tid[];
  _extended bigint;
begin
  if coalesce(v_owner, '') = '' then
    perform event_store_private.refuse_request(format('v_owner is %L', v_owner), 'An owner is named: the id of a run, say.');
  end if;
  perform event_store_private.lease_duration(null, v_lease_s); -- refuses a length that is out of range
  _now := event_store_private.clock();
  _locked := array(
    select held.ctid
    from (
      select v.view, c.partition, c.revision
      from event_store.views v
      cross join event_store.log_partitions p
      cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
      where v.mode = 'bulk' and event_store_private.may_use(v.owner) and c.lease_owner = v_owner and c.leased_until > _now
      offset 0
    ) seen
    -- compare-and-set: no row if another consumer changed it
    cross join lateral (
      select c.ctid from event_store.checkpoints c
      where c.view = seen.view and c.partition = seen.partition and c.revision = seen.revision
      for update skip locked
    ) held
  );
  _now := event_store_private.clock();
  update event_store.checkpoints c
  set leased_until = _now + make_interval(secs => coalesce(v_lease_s, v.lock_timeout_s)), revision = c.revision + 1
  from event_store.views v
  where c.ctid = any (_locked) and v.view = c.view and c.lease_owner = v_owner;
  get diagnostics _extended = row_count;
  return _extended;
end
$$;

comment on function event_store_platform.extend_owner(text, bigint) is
'Extends every lease in force of v_owner to v_lease_s from now (null: its view''s lock_timeout_s), in all bulk views '
'that the caller may use, and returns how many. A lease that expired or was taken over is not extended. It never '
'waits. MR005 v_owner is empty, or v_lease_s is out of range.';
revoke all on function event_store_platform.extend_owner(text, bigint) from public;
grant execute on function event_store_platform.extend_owner(text, bigint) to event_store_consumer, event_store_owner;
