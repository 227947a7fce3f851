-- Usually there is one decider. Each lock is found by its newest version.
create or replace function event_store_private.locks_of_id(
  v_view text,
  v_decider_id text
)
returns setof event_store.stream_locks
language sql
stable
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered unsorted
  with recursive streams(decider) as (
    (select e.decider from event_store.events e where e.decider_id = v_decider_id order by e.decider limit 1)
    union all
    select (
      select e.decider from event_store.events e
      where e.decider_id = v_decider_id and e.decider > s.decider
      order by e.decider
      limit 1
    )
    from streams s
    where s.decider is not null
  )
  select k.* from streams s cross join lateral event_store_private.newest_lock(v_view, v_decider_id, s.decider) k
$$;

comment on function event_store_private.locks_of_id(text, text) is
'The locks that a view has for the streams that share an id.';
