-- By one probe a role, however many events it has.
create or replace function event_store_private.scheduling_roles()
returns setof name
language sql
stable
set search_path = event_store, pg_temp
as $$
-- planner: indexed
  with recursive roles(role) as (
    (select s.made_by from event_store.scheduled_events s where s.done_at is null order by s.made_by limit 1)
    union all
    select (select s.made_by from event_store.scheduled_events s where s.done_at is null and s.made_by > r.role order by s.made_by limit 1)
    from roles r
    where r.role is not null
  )
  select r.role from roles r where r.role is not null
$$;

comment on function event_store_private.scheduling_roles() is 'The roles of the scheduled events that wait.';
