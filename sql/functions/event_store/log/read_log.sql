-- With a filter, fewer than v_limit events mean that no others lie before the mark. A caller that continues from
-- the position after the last event reads again what did not fit.
-- Example: select position, event, decider_id from read_log(3, 0, 100)
-- Example: select position, data from read_log(3, 0, 100, v_deciders => '{order}', v_events => '{order_placed}')
create or replace function event_store.read_log(
  v_partition int,
  v_from_position bigint,
  v_limit bigint default 1000,
  v_deciders text[] default null,
  v_events text[] default null
)
returns setof event_store.log_event
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested unsorted once
#variable_conflict use_column
declare
  _deciders constant text[] := nullif(v_deciders, '{}');
  _events constant text[] := nullif(v_events, '{}');
  _to_position bigint;
begin
  if coalesce(v_limit, 0) <= 0 then
    perform event_store_private.refuse_request(format('v_limit is %s', coalesce(v_limit::text, 'null')), 'v_limit must be at least 1.');
  end if;
  perform event_store.validate_offset_range(v_partition, v_from_position, v_from_position);
  _to_position := (event_store_private.require_partition(v_partition)).high_water_mark;
  return query
  select l.position, r.*
  from event_store.event_log l
  join event_store.versioned_events r using ("offset")
  where l.partition = v_partition and l.position >= v_from_position and l.position < _to_position
    and event_store_private.wants(_deciders, _events, r.decider, r.event)
  order by l.position
  limit v_limit;
end
$$;

comment on function event_store.read_log(int, bigint, bigint, text[], text[]) is
'Returns up to v_limit events of log partition v_partition from v_from_position on, in order; none at the high-water '
'mark. With v_deciders or v_events, only events of these deciders and names; null and {} mean all. With a filter '
'it reads as far as needed. MR005 v_limit is not positive, or v_from_position is null; MR013 unknown log partition; MR015 v_from_position '
'lies below the earliest position or beyond the mark.';
revoke all on function event_store.read_log(int, bigint, bigint, text[], text[]) from public;
grant execute on function event_store.read_log(int, bigint, bigint, text[], text[])
to event_store_consumer, event_store_reader, event_store_owner;
