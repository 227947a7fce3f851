-- Example: select * from scheduled_events_of('order', 'o-1')
create or replace function event_store.scheduled_events_of(
  v_decider text default null,
  v_decider_id text default null,
  v_limit bigint default 100
)
returns setof event_store.scheduled_events
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
begin
  if v_decider_id is not null then
    return query
    select s.*
    from event_store.scheduled_events s
    where s.decider_id = v_decider_id and (v_decider is null or s.decider = v_decider)
    order by s.done_at is null, s.next_at, s.decider, s.name
    limit greatest(v_limit, 0);
    return;
  end if;
  return query
  select f.*
  from (
    (
      select s.*
      from event_store.scheduled_events s
      where s.outcome = 'refused' and (v_decider is null or s.decider = v_decider)
    )
    union all
    select w.*
    from event_store_private.scheduling_roles() r(role)
    cross join lateral (
      select s.*
      from event_store.scheduled_events s
      where s.done_at is null and s.made_by = r.role and (v_decider is null or s.decider = v_decider)
      order by s.next_at
      limit greatest(v_limit, 0)
    ) w
  ) f
  order by f.done_at is null, f.next_at, f.decider_id, f.decider, f.name
  limit greatest(v_limit, 0);
end
$$;

comment on function event_store.scheduled_events_of(text, text, bigint) is
'Returns up to v_limit scheduled events, those first that were refused or are done, then the next to come: of a stream, with '
'those that are done; of a decider, or of all.';
revoke all on function event_store.scheduled_events_of(text, text, bigint) from public;
grant execute on function event_store.scheduled_events_of(text, text, bigint)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
