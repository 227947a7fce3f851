-- Of the marks that the sequencer added between 91 and 90 days ago, the last one of each hour stays. If no session
-- sequences on the day on which marks reach that age, they all stay.
create or replace function event_store_private.add_mark(
  v_reason text
)
returns event_store.log_marks
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed
declare
  _now constant timestamptz := event_store_private.clock();
  _mark event_store.log_marks;
begin
  delete from event_store.log_marks m
  where m.marked_at between _now - interval '91 days' and _now - interval '90 days' and m.reason is null and exists (
    select from event_store.log_marks later
    where later.marked_at < date_trunc('hour', m.marked_at) + interval '1 hour' and later.reason is null
      and (later.marked_at, later.mark_id) > (m.marked_at, m.mark_id)
  );
  insert into event_store.log_marks (marked_at, marks, reason)
  select _now, array_agg(p.high_water_mark order by p.partition), v_reason
  from event_store.partitions p
  returning * into _mark;
  return _mark;
end
$$;

comment on function event_store_private.add_mark(text) is
'Adds the present high-water marks to log_marks and returns them; the sequencer''s own of 90 days ago become one an hour.';
