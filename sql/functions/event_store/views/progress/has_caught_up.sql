-- A reader that changes over from the rows of v_other to those of v_view then misses nothing. It checks at most a
-- thousand positions of a log partition: a view that is further behind has not caught up. It locks the checkpoints of
-- v_other.
-- Example: select has_caught_up('orders_v2', 'orders')
create or replace function event_store_platform.has_caught_up(
  v_view text,
  v_other text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- without statistics the plan may look costly, and compiling it takes longer than running it
as $$
-- planner: ordered uncompiled
declare
  _view constant event_store.views := event_store_private.known_view(v_view);
begin
  perform event_store_private.known_view(v_other);
  perform from event_store.checkpoints where view = v_other order by partition for share;
  return not exists (
    select from event_store.log_partitions p
    cross join lateral event_store_private.checkpoint_of(v_other, p.partition) o
    cross join lateral event_store_private.checkpoint_of(v_view, p.partition) c
    where c.position < o.position
      and (
        -- a view may stay behind by a few unwanted events; events that are no longer kept may have been wanted
        o.position - c.position > 1000 or c.position < p.earliest_position
        or exists (
          select from event_store.event_log l
          join event_store.events e using ("offset")
          where l.partition = p.partition and l.position >= c.position and l.position < o.position
            and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
          offset 0
        )
      )
  ) and not exists (
    -- events of streams with a lock here may be acknowledged there: by the checkpoint, or by the stream's lock there
    select from event_store.stream_locks k
    cross join lateral event_store_private.checkpoint_of(v_other, k.partition) there
    left join event_store.stream_locks o on o.view = v_other and o.decider_id = k.decider_id and o.decider = k.decider
    where k.view = v_view
      and exists (
        select from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = k.decider_id and e.decider = k.decider
          and e.version > k.last_version and e."offset" > k.last_offset
          and case when o.view is null then l.position < there.position else e."offset" <= o.last_offset end
          and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
        offset 0
      )
  ) and not exists (
    -- a lock there may acknowledge events that the checkpoint here has not reached
    select from event_store.stream_locks o
    cross join lateral event_store_private.checkpoint_of(v_view, o.partition) here
    where o.view = v_other
      and not exists (
        select from event_store.stream_locks k
        where k.view = v_view and k.decider_id = o.decider_id and k.decider = o.decider
        offset 0
      )
      and (
        select l.position
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = o.decider_id and e.decider = o.decider and e."offset" <= o.last_offset
          and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
        order by e.version desc
        limit 1
      ) >= here.position
  );
end
$$;

comment on function event_store_platform.has_caught_up(text, text) is
'Says whether v_view has acknowledged every event that it wants and v_other has acknowledged. Nothing of v_other moves '
'until the transaction ends. MR010 unknown view.';
revoke all on function event_store_platform.has_caught_up(text, text) from public;
grant execute on function event_store_platform.has_caught_up(text, text) to event_store_owner;
