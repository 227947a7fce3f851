-- A consumer is live while its time is not over and its session lives.
create or replace function event_store_private.attached_consumers()
returns table (
  view text,
  consumers bigint
)
language sql
volatile
as $$
  select c.view, count(*)
  from event_store.consumers c
  where c.attached_until > (select event_store_private.clock()) and event_store_private.lives(c.pid, c.session_began_at)
  group by c.view
$$;

comment on function event_store_private.attached_consumers() is
'The number of live consumers that attached themselves to each view.';
