-- The row is the record of the stream's last event; values that it lacks (unavailable) come from earlier events. The
-- row is incomplete if a value was never in the log, or if its event is purged or lies more than a thousand events
-- back.
create or replace function event_store_private.last_record(
  v_decider_id text,
  v_decider text
)
returns jsonb
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
declare
  _event record;
  _record jsonb;
  _lacking text[];
begin
  for _event in
    select e.event, e.data
    from event_store.events e
    where e.decider_id = v_decider_id and e.decider = v_decider
    order by e.version desc
    limit 1000
  loop
    if _event.event not in ('inserted', 'updated', 'backfilled') or jsonb_typeof(_event.data -> 'record') is distinct from 'object' then
      return null;
    end if;
    if _record is null then
      _record := _event.data -> 'record';
      _lacking := event_store_private.lacking_columns(_event.data);
    else
      _record := _record || coalesce(
        (select jsonb_object_agg(l.name, _event.data -> 'record' -> l.name) from unnest(_lacking) l(name) where _event.data -> 'record' ? l.name),
        '{}'
      );
      -- a column that an event neither has nor lacks did not exist yet
      _lacking := array(
        select l.name from unnest(_lacking) l(name) where l.name = any(event_store_private.lacking_columns(_event.data))
      );
    end if;
    if _lacking = '{}' then
      return _record;
    end if;
    -- earlier events are of another row
    if _event.event <> 'updated' or _event.data ? 'old_key' then
      return null;
    end if;
  end loop;
  return null;
end
$$;

comment on function event_store_private.last_record(text, text) is
'The current row of a captured table according to its stream; null if it is gone or incomplete.';
