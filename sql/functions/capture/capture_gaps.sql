-- Example: select gap_id, reason, resolved_by_generation from capture_gaps('crm')
create or replace function event_store_platform.capture_gaps(
  v_capture text
)
returns setof event_store.capture_gaps
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select g.*
  from event_store.capture_gaps g
  where g.capture = v_capture
  order by g.gap_id desc
$$;

comment on function event_store_platform.capture_gaps(text) is
'Returns the gaps in which changes of capture v_capture were lost, the newest first. resolved_by_generation is null '
'while a gap is open.';
revoke all on function event_store_platform.capture_gaps(text) from public;
grant execute on function event_store_platform.capture_gaps(text) to event_store_reader, event_store_owner;
