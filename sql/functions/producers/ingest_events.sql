-- Nothing is staged. v_digest is as begin_transaction's.
-- Example: select status, offsets from ingest_events('orders.csv', 0, 1, 41, '[…]', '{"total": 17}')
create or replace function event_store.ingest_events(
  v_producer_id text,
  v_partition int,
  v_epoch bigint,
  v_sequence bigint,
  v_events jsonb default null,
  v_state jsonb default null,
  v_result jsonb default null,
  v_digest bytea default null
)
returns table (
  status text,
  transaction_id uuid,
  expires_at timestamptz,
  outcome text,
  result jsonb,
  offsets bigint[],
  appended boolean[],
  next_sequence bigint,
  epoch bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
#variable_conflict use_column
declare
  _status text;
  _keys text[];
  _values jsonb[];
begin
  if jsonb_typeof(v_state) <> 'object' then
    perform event_store_private.refuse_request(
      format('v_state is of type %s', jsonb_typeof(v_state)), 'Pass a JSON object of keys and values.'
    );
  end if;
  _status := event_store_private.receive_stamp(v_producer_id, v_partition, v_epoch, v_sequence, v_digest);
  if _status = 'opened' then
    select array_agg(c.key), array_agg(nullif(c.value, 'null')) into _keys, _values from jsonb_each(v_state) c;
    perform event_store_private.require_state_key(k.key) from unnest(_keys) k(key);
    select m.* into offsets, appended
    from event_store_private.apply_message(
      v_producer_id, v_partition, v_sequence, v_events, _keys, _values, v_result, null, v_digest
    ) m;
    status := 'committed';
    outcome := 'committed';
    result := v_result;
    next_sequence := v_sequence + 1;
    epoch := v_epoch;
    return next;
    return;
  end if;
  return query
  select _status, null::uuid, null::timestamptz, coalesce(r.outcome, case _status when 'duplicate' then 'committed' end),
    r.result, r.offsets, r.appended, g.next_sequence, p.epoch
  from event_store.producers p
  cross join lateral event_store_private.progress_of(p.producer_id, p.partition) g
  left join event_store.producer_results r
    on _status = 'duplicate' and r.producer_id = v_producer_id and r.partition = v_partition and r.sequence = v_sequence
  where p.producer_id = v_producer_id and p.partition = v_partition;
end
$$;

comment on function event_store.ingest_events(text, int, bigint, bigint, jsonb, jsonb, jsonb, bytea) is
'Handles a producer''s whole message in one call: appends v_events as append_events does, changes its state by the '
'JSON object v_state (a JSON null removes the key), and keeps v_result as the answer. appended says for each event '
'whether it was new. The row is that of begin_transaction, with status committed in place of opened. MR001 to MR005, '
'MR034, MR046, MR050 and MR055 as append_events; MR023 unknown producer; MR028 the number came before with another v_digest; '
'MR045 another role''s producer.';
revoke all on function event_store.ingest_events(text, int, bigint, bigint, jsonb, jsonb, jsonb, bytea) from public;
grant execute on function event_store.ingest_events(text, int, bigint, bigint, jsonb, jsonb, jsonb, bytea)
to event_store_writer, event_store_owner;
