-- Sequences new events first. The commit_batch of a rebuild frees all streams that fail_streams does not name again.
create or replace function event_store_platform.claim_partition(
  v_view text,
  v_partition int,
  v_owner text,
  v_lease_s bigint default null
)
returns table (
  partition int,
  from_position bigint,
  to_position bigint,
  lease_token bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- by index: see checkpoint_of
as $$
-- planner: indexed ordered
#variable_conflict use_column
declare
  _view constant event_store.views := event_store_private.own_view(v_view, 'bulk');
  _lease constant interval := event_store_private.lease_duration(_view, v_lease_s);
  _checkpoint event_store.checkpoints;
begin
  if coalesce(v_owner, '') = '' then
    perform event_store_private.refuse_request(format('v_owner is %L', v_owner), 'An owner is named: the id of a run, say.');
  end if;
  perform event_store_private.require_partition(v_partition);
  -- the log keeps the range that this leases
  perform event_store_private.share_history();
  begin
    select * into _checkpoint from event_store.checkpoints c
    where c.view = v_view and c.partition = v_partition
    order by c.revision desc
    limit 1
    for update nowait;
  exception when lock_not_available then
    raise exception 'log partition is leased'
      using
        errcode = 'MR014',
        detail = format('partition %s of view %L is being claimed or committed, or its view moves', v_partition, v_view),
        hint = 'Try again in a moment.';
  end;
  -- lock_idle_view locks all that can be leased. So it either failed at our locks or committed before them, and this
  -- statement sees what it changed.
  if not exists (
    select from event_store.views v where v.view = _view.view and v.mode = _view.mode and v.created_at = _view.created_at
  ) then
    perform event_store_private.refuse_view_in_use(v_view, 'another session changed it just now');
  end if;
  if _checkpoint.leased_until > event_store_private.clock() then
    raise exception 'log partition is leased'
      using
        errcode = 'MR014',
        detail = format('partition %s of view %L is leased by %s until %s', v_partition, v_view, _checkpoint.lease_owner, _checkpoint.leased_until),
        hint = 'Try again when the lease is given back or has expired.';
  end if;
  -- Only now: a caller that waits while it holds the sequencer's row keeps new events from all consumers.
  perform event_store_platform.sequence_events();
  return query
  update event_store.checkpoints c
  set
    lease_owner = v_owner,
    lease_token = nextval('event_store.lease_token_seq'),
    leased_until = event_store_private.clock() + _lease,
    leased_from = p.earliest_position,
    leased_to = p.high_water_mark,
    rebuilds = true,
    revision = c.revision + 1
  from event_store.partitions p
  where c.view = v_view and c.partition = v_partition and c.revision = _checkpoint.revision and p.partition = v_partition
  returning c.partition, c.leased_from, c.leased_to, c.lease_token;
end
$$;

comment on function event_store_platform.claim_partition(text, int, text, bigint) is
'Leases log partition v_partition of a bulk view to v_owner for a rebuild and returns its whole content as a range, '
'pending or not. A rebuild reads every stream, and its commit frees the streams that have a lock. v_lease_s as for '
'claim_batch. MR005 v_owner is empty, or v_lease_s is out of range; MR010 unknown view; MR012 a rows view; MR013 '
'unknown log partition; MR014 its lease is held; MR017 another transaction changes the view.';
revoke all on function event_store_platform.claim_partition(text, int, text, bigint) from public;
grant execute on function event_store_platform.claim_partition(text, int, text, bigint)
to event_store_consumer, event_store_owner;
