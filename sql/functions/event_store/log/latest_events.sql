-- For people: a consumer that must miss nothing reads the log by positions.
-- A stream and a correlation are found by their index. Without either, events are read from the newest back or from
-- v_since on, as far as needed: a filter that few events fit can read the whole log.
-- The next page begins before the last offset of this one. Races: an open transaction may add events with lower
-- offsets.
-- Example: select partition, position, event, decider_id from latest_events(20, v_decider => 'order')
-- Example: select version, event, data from latest_events(20, 'order', 'o-1')
create or replace function event_store_platform.latest_events(
  v_limit bigint default 20,
  v_decider text default null,
  v_decider_id text default null,
  v_event text default null,
  v_since timestamptz default null,
  v_correlation_id text default null,
  v_before_offset bigint default null
)
returns table (
  partition int,
  "position" bigint,
  event text,
  event_id uuid,
  event_version bigint,
  decider text,
  decider_id text,
  data jsonb,
  command_id uuid,
  previous_id uuid,
  final boolean,
  created_at timestamptz,
  "offset" bigint,
  version bigint,
  metadata jsonb
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
-- the functions that search events have settings of their own
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
declare
  _partitions constant bigint := (select count(*) from event_store.log_partitions);
begin
  if coalesce(v_limit, 0) <= 0 then
    perform event_store_private.refuse_request(format('v_limit is %s', coalesce(v_limit::text, 'null')), 'v_limit must be at least 1.');
  end if;
  perform event_store_private.require_known_names(v_decider, v_event);
  return query
  select coalesce(l.partition, event_store.stream_partition(e.decider_id, _partitions)), l.position, e.*
  from event_store_private.matching_events(v_limit, v_decider, v_decider_id, v_event, v_since, v_correlation_id, v_before_offset) e
  left join event_store.event_log l using ("offset")
  order by e."offset" desc
  limit v_limit;
end
$$;

comment on function event_store_platform.latest_events(bigint, text, text, text, timestamptz, text, bigint) is
'Returns the newest v_limit kept events, the newest first: of v_decider, of the stream v_decider_id, named v_event, '
'appended at v_since or later, with the correlation_id v_correlation_id, below v_before_offset; null does not filter. '
'position is null while an event is not sequenced. MR004 v_decider or v_event is not registered; MR005 v_limit is not positive.';
revoke all on function event_store_platform.latest_events(bigint, text, text, text, timestamptz, text, bigint) from public;
grant execute on function event_store_platform.latest_events(bigint, text, text, text, timestamptz, text, bigint)
to event_store_consumer, event_store_reader, event_store_owner;
