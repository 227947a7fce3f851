-- The lags are the sums of view_lag, but for all views together at most v_most events are read, and one for each
-- position at which views far behind stand. lag_seconds is 0 if there is no such event. behind counts unwanted
-- positions, too. in_flight: delivered and not answered; waiting: failed, and to be retried; dead_letters: parked.
-- Example: select view, lag, lag_seconds, dead_letters from view_info() order by lag_seconds desc
create or replace function event_store.view_info(
  v_view text default null,
  v_most bigint default 100000
)
returns table (
  view text,
  mode text,
  enabled boolean,
  lag bigint,
  lag_seconds double precision,
  exact boolean,
  behind bigint,
  in_flight bigint,
  waiting bigint,
  dead_letters bigint,
  leased_partitions bigint,
  consumers bigint
)
language plpgsql
volatile -- as the clock is
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
begin
  if coalesce(v_most, 0) <= 0 then
    perform event_store_private.refuse_request(format('v_most is %s', coalesce(v_most::text, 'null')), 'v_most must be at least 1.');
  end if;
  if v_view is not null then
    perform event_store_private.known_view(v_view);
  end if;
  return query
  select
    v.view, v.mode, v.enabled, coalesce(l.lag, 0)::bigint, coalesce(l.lag_seconds, 0), coalesce(l.exact, true),
    coalesce(l.behind, 0)::bigint, k.in_flight, k.waiting, k.dead_letters, c.leased, coalesce(a.consumers, 0)
  from event_store.views v
  left join (
    select
      g.view, sum(g.lag) as lag, max(g.lag_seconds) as lag_seconds, bool_and(g.exact) as exact, sum(g.behind) as behind
    from event_store_private.lags(
      array(select w.view from event_store.views w where v_view is null or w.view = v_view), v_most
    ) g
    group by g.view
  ) l using (view)
  cross join lateral (
    select count(*) as leased
    from (select q.partition from event_store.log_partitions q offset 0) p
    cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
    where c.leased_until > _now
  ) c
  -- view by view, so that a plan for any v_view also reads the locks of one view by index
  cross join lateral (
    select
      count(*) filter (where k.in_flight is not null and k.locked_until > _now) as in_flight,
      count(*) filter (where k.parked_at is null and k.attempts > 0 and (k.in_flight is null or k.locked_until <= _now)) as waiting,
      count(k.parked_at) as dead_letters
    from event_store.stream_locks k
    where k.view = v.view
  ) k
  left join event_store_private.attached_consumers() a using (view)
  where v_view is null or v.view = v_view
  order by v.view;
end
$$;

comment on function event_store.view_info(text, bigint) is
'Returns one row per view, or only v_view: the wanted events that it has not acknowledged (lag, exact or a lower bound), the '
'age of the first of them that no parked stream has (lag_seconds), how many positions it is behind, its streams in flight, before another try, and parked, its '
'leased log partitions, its live consumers. v_most bounds how many events are read to count them. MR005 v_most is not '
'positive; MR010 unknown view.';
revoke all on function event_store.view_info(text, bigint) from public;
grant execute on function event_store.view_info(text, bigint) to event_store_consumer, event_store_reader, event_store_owner;
