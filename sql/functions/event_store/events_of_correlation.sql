-- The next page begins after the last offset of this one. A transaction that was open meanwhile may add events with
-- lower offsets: read again from 0 to get late ones.
-- Example: select decider, decider_id, event from events_of_correlation('request-7')
create or replace function event_store.events_of_correlation(
  v_correlation_id text,
  v_after_offset bigint default 0,
  v_limit bigint default 1000
)
returns setof event_store.versioned_events
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered unsorted once
begin
  if coalesce(v_limit, 0) <= 0 or v_correlation_id is null or v_after_offset is null then
    perform event_store_private.refuse_request(
      format(
        'v_correlation_id is %s, v_after_offset %s, v_limit %s', coalesce(quote_literal(v_correlation_id), 'null'),
        coalesce(v_after_offset::text, 'null'), coalesce(v_limit::text, 'null')
      ),
      'All are stated, and v_limit is at least 1.'
    );
  end if;
  return query
  select e.*
  from event_store.versioned_events e
  where e.metadata ->> 'correlation_id' = v_correlation_id and e."offset" > v_after_offset
  order by e."offset"
  limit v_limit;
end
$$;

comment on function event_store.events_of_correlation(text, bigint, bigint) is
'Returns up to v_limit kept events with the correlation_id v_correlation_id in their metadata, in the order of offsets after '
'v_after_offset. MR005 an argument is null, or v_limit is not positive.';
revoke all on function event_store.events_of_correlation(text, bigint, bigint) from public;
grant execute on function event_store.events_of_correlation(text, bigint, bigint)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
