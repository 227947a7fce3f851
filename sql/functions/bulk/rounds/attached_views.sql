-- The views that a named consumer is attached to now (attach_consumer): none if it died. Who started a consumer of many
-- views asks whether it lives, and which views it serves.
-- Races: none; it takes no lock. Example: select attached_views('run 7')
create or replace function event_store.attached_views(
  v_consumer text
)
returns setof text
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
  select c.view
  from event_store.consumers c
  where c.consumer = v_consumer
    and c.attached_until > (select event_store_private.clock())
    and c.pid in (select a.pid from pg_stat_activity a)
  order by c.view
$$;

comment on function event_store.attached_views(text) is
'Returns the views that a consumer, named as in attach_consumer, is attached to now; none if it died.';
revoke all on function event_store.attached_views(text) from public;
grant execute on function event_store.attached_views(text) to event_store_consumer, event_store_reader, event_store_owner;
