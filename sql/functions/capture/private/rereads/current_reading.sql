-- A reading, with its capture locked. Raises MR049 where it is over: it ended, another one of its table began, or the table
-- is read anew as a whole.
create or replace function event_store_private.current_reading(
  v_reading bigint
)
returns event_store.readings
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _capture constant text := (select r.capture from event_store.readings r where r.backfill_offset = v_reading);
  _reading event_store.readings;
begin
  if _capture is not null then
    perform event_store_private.lock_capture(_capture);
  end if;
  select r.* into _reading
  from event_store.readings r
  join event_store.captured_tables t using (capture, schema_name, table_name)
  where r.backfill_offset = v_reading and t.backfill_generation = r.source_generation;
  if not found then
    raise exception 'reading is over'
      using
        errcode = 'MR049',
        detail = format('reading %s', coalesce(v_reading::text, 'null')),
        hint = 'It ended, or another one of its table began. Begin it again: select begin_reading(...).';
  end if;
  return _reading;
end
$$;

comment on function event_store_private.current_reading(bigint) is 'A reading with its capture locked. MR049 it is over.';
