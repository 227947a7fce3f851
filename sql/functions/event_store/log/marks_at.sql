-- Example: select mark_id, marked_at, marks from marks_at('2030-01-01 00:00:00+00')
create or replace function event_store_platform.marks_at(
  v_time timestamptz
)
returns setof event_store.log_marks
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed
begin
  return query
  select * from event_store.log_marks m where m.marked_at <= v_time order by m.marked_at desc, m.mark_id desc limit 1;
end
$$;

comment on function event_store_platform.marks_at(timestamptz) is
'Returns the last moment in log_marks that is not after v_time; no row where there is none. It tells which events were in the log '
'then, to the minute, whatever created_at an event of a slow transaction has.';
revoke all on function event_store_platform.marks_at(timestamptz) from public;
grant execute on function event_store_platform.marks_at(timestamptz) to event_store_consumer, event_store_reader, event_store_owner;
