-- The event that failed is the first one after the acknowledged ones; in bulk mode the first of those that were
-- delivered together. If the view's filter no longer wants it, it is the next wanted event, which a retry would
-- deliver; null while the log has none. It counts among the waiting events. Streams that wait for a retry are those
-- that view_info counts; they have no parked_at.
-- Example: select decider_id, event, attempts, last_error from dead_letters('invoices')
create or replace function event_store.dead_letters(
  v_view text default null,
  v_waiting boolean default false
)
returns table (
  view text,
  decider text,
  decider_id text,
  partition int,
  event text,
  "offset" bigint,
  attempts int,
  last_error text,
  parked_at timestamptz,
  waiting bigint
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  if v_view is not null then
    perform event_store_private.known_view(v_view);
  end if;
  return query
  select
    k.view, k.decider, k.decider_id, k.partition, case when l."offset" is not null then failed.event end, l."offset", k.attempts,
    coalesce(k.last_error, 'no reason given'), k.parked_at, failed.waiting
  from event_store.stream_locks k
  join event_store.views v using (view)
  left join lateral (
    select
      (array_agg(e.event order by e."offset"))[1] as event,
      min(e."offset") as "offset",
      count(*) as waiting
    from event_store.events e
    where e.decider_id = k.decider_id and e.decider = k.decider
      and e.version > k.last_version and e."offset" > k.last_offset
      and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
  ) failed on true
  left join event_store.event_log l on l."offset" = failed."offset"
  where (v_view is null or k.view = v_view) and (k.parked_at is null) = (v_waiting is true)
    and (
      v_waiting is not true
      or k.attempts > 0 and (k.in_flight is null or k.locked_until <= event_store_private.clock())
    )
  order by k.parked_at, k.view, k.decider_id, k.decider;
end
$$;

comment on function event_store.dead_letters(text, boolean) is
'Returns the parked streams of v_view, or of all views (null), those parked first first: the event that failed, why, '
'after how many attempts, and how many events of the stream wait with it. With v_waiting those that wait for a retry '
'instead. MR010 unknown view.';
revoke all on function event_store.dead_letters(text, boolean) from public;
grant execute on function event_store.dead_letters(text, boolean) to event_store_consumer, event_store_reader, event_store_owner;
