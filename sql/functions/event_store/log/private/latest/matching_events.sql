-- By the cheapest way: a correlation, else a stream, else the log from its end. A null filter does not filter.
create or replace function event_store_private.matching_events(
  v_limit bigint,
  v_decider text,
  v_decider_id text,
  v_event text,
  v_since timestamptz,
  v_correlation_id text,
  v_before_offset bigint
)
returns setof event_store.versioned_events
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  if v_correlation_id is not null then
    return query
    select * from event_store_private.matching_events_of_correlation(
      v_limit, v_decider, v_decider_id, v_event, v_since, v_correlation_id, v_before_offset
    );
  elsif v_decider_id is not null then
    return query
    select * from event_store_private.matching_events_of_stream(
      v_limit, v_decider, v_decider_id, v_event, v_since, v_before_offset
    );
  else
    return query
    select * from event_store_private.matching_events_of_log(v_limit, v_decider, v_event, v_since, v_before_offset);
  end if;
end
$$;

comment on function event_store_private.matching_events(bigint, text, text, text, timestamptz, text, bigint) is
'The newest events that fit all filters, in no promised order.';
