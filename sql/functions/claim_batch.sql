-- Leases log partitions that hold events for a bulk view, those with the oldest pending event first, and returns the
-- ranges [from_offset, to_offset) to read, v_limit events in all. Never waits: what others hold is left out.
-- Sequences new events first. A lease ends by commit_batch, by release_batch, or v_lease_s seconds (default: the view's
-- lock_timeout_s) after the claim or its last extension.
create or replace function event_store.claim_batch(
  v_view text,
  v_owner text,
  v_limit bigint default 100000,
  v_lease_s bigint default null
)
returns table (
  partition int,
  from_offset bigint,
  to_offset bigint,
  lease_token bigint
)
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _view constant event_store.views := event_store.known_view(v_view, 'bulk');
  _lease constant interval := event_store.lease_duration(_view, v_owner, v_lease_s);
  _claimed int[];
begin
  if coalesce(v_limit, 0) <= 0 then
    raise exception 'claim is malformed'
      using errcode = 'MR005', detail = format('v_limit is %s', v_limit), hint = 'v_limit must be at least 1.';
  end if;
  if not _view.enabled then
    return;
  end if;
  perform event_store.sequence_events();

  -- locks them; the ranges are read in the statement after that
  _claimed := event_store.pass_over_unwanted(v_view);

  return query
  with pending as (
    select c.partition, c.position, p.high_water_mark, oldest."offset" as oldest
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    join event_store.event_log oldest on oldest.partition = c.partition and oldest.partition_offset = c.position
    where c.view = v_view and c.partition = any (_claimed) and c.position < p.high_water_mark
  ), shared as (
    select
      q.partition, q.high_water_mark,
      coalesce(
        sum(q.high_water_mark - q.position) over (order by q.oldest rows between unbounded preceding and 1 preceding), 0
      )::bigint as taken_before
    from pending q
  )
  update event_store.checkpoints c
  set lease_owner = v_owner, lease_token = c.lease_token + 1, leased_until = event_store.clock() + _lease
  from shared s
  where c.view = v_view and c.partition = s.partition and s.taken_before < v_limit
  returning c.partition, c.position, least(s.high_water_mark, c.position + v_limit - s.taken_before), c.lease_token;
end
$$;

comment on function event_store.claim_batch(text, text, bigint, bigint) is 'Leases log partitions with pending events and returns the ranges to read; none when there is nothing to do. MR005 malformed, MR010 unknown view, MR012 other mode.';
