-- For streams with a lock, it acknowledges the events that the lease delivered below v_to_position, except for streams
-- that fail_streams named earlier in this transaction.
create or replace function event_store.commit_batch(
  v_view text,
  v_partition int[],
  v_to_position bigint[],
  v_lease_token bigint[]
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
declare
  _view event_store.views;
  _now timestamptz;
  _bad text;
begin
  perform event_store_private.require_leases(v_view, v_partition, v_lease_token);
  select string_agg(
    format(
      'partition %s: to %s, position %s, leased up to %s, high-water mark %s',
      b.partition, b.to_position, c.position, c.leased_to, p.high_water_mark
    ),
    '; ' order by b.partition
  )
  into _bad
  from unnest(v_partition, v_to_position) b(partition, to_position)
  left join event_store_private.checkpoint_of(v_view, b.partition) c on true
  left join event_store.partitions p on p.partition = b.partition
  where (b.to_position between c.position and c.leased_to) is not true
    or (c.rebuilds and b.to_position <> c.leased_to)
    -- A stream failed at an event beyond that position: no later lease would deliver the events in between.
    or (
      b.to_position < c.leased_to
      and exists (
        select from event_store.stream_locks k
        join event_store.events e on e.decider_id = k.decider_id and e.decider = k.decider and e.version = k.last_version
        join event_store.event_log l on l."offset" = e."offset"
        where k.view = v_view and k.partition = b.partition and k.lease_token = c.lease_token and k.in_flight is null
          and l.position >= b.to_position
      )
    );
  if _bad is not null then
    raise exception 'checkpoint cannot move there'
      using
        errcode = 'MR015',
        detail = _bad,
        hint = 'Commit a position from the checkpoint up to the end of the leased range; a rebuild commits all of it.';
  end if;

  if exists (select from event_store.stream_locks where view = v_view) then
    _now := event_store_private.clock();
    if exists (
      select from unnest(v_partition) b(partition) cross join lateral event_store_private.checkpoint_of(v_view, b.partition) c where c.rebuilds
    ) then
      delete from event_store.stream_locks k
      using unnest(v_partition) b(partition)
      cross join lateral event_store_private.checkpoint_of(v_view, b.partition) c
      where c.rebuilds
        and k.view = v_view and k.partition = c.partition and k.lease_token <> c.lease_token;
    end if;
    update event_store.stream_locks k
    set
      last_offset = coalesce(retried."offset", k.last_offset), last_version = coalesce(retried.version, k.last_version),
      in_flight = null, attempts = 0, last_error = null, locked_until = _now, updated_at = _now, revision = k.revision + 1
    from (
      select r.decider_id, r.decider, below."offset", below.version
      from unnest(v_partition, v_to_position, v_lease_token) b(partition, to_position, lease_token)
      join event_store.stream_locks r
        on r.view = v_view and r.partition = b.partition and r.lease_token = b.lease_token
        and r.in_flight is not null and r.lease_pid is null
      join event_store.events last on last."offset" = r.in_flight
      -- A commit of a part of the range also acknowledges that part of a retry.
      left join lateral (
        select e."offset", e.version
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = r.decider_id and e.decider = r.decider
          and e.version > r.last_version and e."offset" > r.last_offset and e.version <= last.version
          and l.position < b.to_position
        order by e.version desc
        limit 1
      ) below on true
    ) retried
    where k.view = v_view and k.decider_id = retried.decider_id and k.decider = retried.decider;
  end if;

  update event_store.checkpoints c
  set
    position = b.to_position, lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false,
    revision = c.revision + 1
  from unnest(v_partition, v_to_position) b(partition, to_position)
  cross join lateral event_store_private.checkpoint_of(v_view, b.partition) held
  where c.ctid = held.version; -- require_leases locked this version

  if _now is not null then
    _view := event_store_private.known_view(v_view);
    perform event_store_private.sweep_locks(_view, v_partition, true);
  end if;
end
$$;

comment on function event_store.commit_batch(text, int[], bigint[], bigint[]) is
'Moves the checkpoints of the leased log partitions v_partition to v_to_position and ends their leases '
'(v_lease_token): all of them or none. Call it in the transaction that writes the effect, so that both commit '
'together. Delivered events are acknowledged, except those of streams that fail_streams named. MR005 the arrays do '
'not fit; MR010 unknown view; MR011 a lease is lost; MR012 a rows view; MR015 a checkpoint cannot move there.';
revoke all on function event_store.commit_batch(text, int[], bigint[], bigint[]) from public;
grant execute on function event_store.commit_batch(text, int[], bigint[], bigint[])
to event_store_consumer, event_store_owner;
