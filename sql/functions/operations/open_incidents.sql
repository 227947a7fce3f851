-- Example: select kind, subject, began_at, cause from open_incidents()
create or replace function event_store_platform.open_incidents()
returns setof event_store.incidents
language sql
stable
security definer
set search_path = event_store, pg_temp
-- by index, with or without statistics: incidents that are over are kept for a month
as $$
-- planner: indexed ordered once
  select i.* from event_store.incidents i where i.told <> 'over' order by i.began_at, i.kind, i.subject
$$;

comment on function event_store_platform.open_incidents() is
'Returns the incidents that are not over, and those with an end that was not told yet, the oldest first.';
revoke all on function event_store_platform.open_incidents() from public;
grant execute on function event_store_platform.open_incidents() to event_store_reader, event_store_owner;
