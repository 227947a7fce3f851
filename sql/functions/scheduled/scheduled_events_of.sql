-- Example: select * from scheduled_events_of('order', 'o-1')
create or replace function event_store.scheduled_events_of(
  v_decider text default null,
  v_decider_id text default null,
  v_limit bigint default 100
)
returns setof event_store.scheduled_events
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select s.*
  from event_store.scheduled_events s
  where (v_decider is null or s.decider = v_decider) and (v_decider_id is null or s.decider_id = v_decider_id)
    and (v_decider_id is not null or s.done_at is null or s.outcome = 'refused')
  order by s.done_at is null, s.next_at, s.decider_id, s.decider, s.name
  limit greatest(v_limit, 0)
$$;

comment on function event_store.scheduled_events_of(text, text, bigint) is
'Returns up to v_limit scheduled events, those first that were refused or are done, then the next to come: of a stream, with '
'those that are done; of a decider, or of all.';
revoke all on function event_store.scheduled_events_of(text, text, bigint) from public;
grant execute on function event_store.scheduled_events_of(text, text, bigint)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
