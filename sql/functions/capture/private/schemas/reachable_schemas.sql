-- A change that its source may still send again needs its schema. Of the schemas from before the changes that
-- purge_wal_events removed, the last one stays.
create or replace function event_store_private.reachable_schemas(
  v_schemas jsonb,
  v_capture event_store.captures
)
returns jsonb
language sql
immutable
as $$
  select coalesce(jsonb_agg(s.element order by s.number), '[]')
  from (
    select
      element,
      number,
      lead(element) over (order by number) as later
    from jsonb_array_elements(v_schemas) with ordinality e(element, number)
  ) s
  where s.later is null
    or (
      (s.later ->> 'generation')::int < v_capture.source_generation
      or (s.later ->> 'lsn')::pg_lsn < v_capture.purged_lsn
    ) is not true
$$;

comment on function event_store_private.reachable_schemas(jsonb, event_store.captures) is
'The schemas of a captured table without those that only purged changes had.';
