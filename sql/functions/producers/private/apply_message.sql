-- In the state a null removes the key. The caller has locked the producer's row.
create or replace function event_store_private.apply_message(
  v_producer_id text,
  v_partition int,
  v_sequence bigint,
  v_events jsonb,
  v_keys text[],
  v_values jsonb[],
  v_result jsonb,
  v_transaction_id uuid,
  v_digest bytea
)
returns table (
  offsets bigint[],
  appended boolean[]
)
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  offsets := '{}';
  appended := '{}';
  perform event_store_private.require_kept('v_result', v_result);
  if v_events is not null then
    select array_agg(a."offset" order by a.ordinal), array_agg(a.appended order by a.ordinal) into offsets, appended
    from event_store_private.append_batch(
      event_store_private.parse_events(v_events, format('%s/%s/%s', v_producer_id, v_partition, v_sequence))
    )
      with ordinality a(event_id, previous_id, "offset", version, appended, ordinal);
  end if;
  if cardinality(v_keys) > 0 then
    perform event_store_private.require_kept(format('state %L', c.key), c.value) from unnest(v_keys, v_values) c(key, value);
    with changed as materialized (
      -- each found by its newest message: see checkpoint_of
      select c.key, c.value, s.version
      from unnest(v_keys, v_values) c(key, value)
      left join lateral (
        select s.ctid as version from event_store.producer_state s
        where s.producer_id = v_producer_id and s.partition = v_partition and s.key = c.key
        order by s.sequence desc
        limit 1
      ) s on true
    ), removed as (
      delete from event_store.producer_state s using changed c where s.ctid = c.version and c.value is null
    ), replaced as (
      update event_store.producer_state s set value = c.value, sequence = v_sequence
      from changed c
      where s.ctid = c.version and c.value is not null
    )
    insert into event_store.producer_state (producer_id, partition, key, value, sequence)
    select v_producer_id, v_partition, c.key, c.value, v_sequence
    from changed c
    where c.version is null and c.value is not null;
  end if;
  perform event_store_private.record_outcome(
    v_producer_id, v_partition, v_sequence, 'committed', v_result, offsets, appended, null, v_transaction_id, v_digest
  );
  return next;
end
$$;

comment on function event_store_private.apply_message(text, int, bigint, jsonb, text[], jsonb[], jsonb, uuid, bytea) is
'Appends a message''s events, changes its producer''s state and records the result; returns the offsets of the events '
'and which were new. MR001 to MR005, MR034 as append_events.';
