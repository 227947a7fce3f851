-- The caller has locked the producer's row.
create or replace function event_store_private.record_outcome(
  v_producer_id text,
  v_partition int,
  v_sequence bigint,
  v_outcome text,
  v_result jsonb,
  v_offsets bigint[],
  v_appended boolean[],
  v_reason text,
  v_transaction_id uuid,
  v_digest bytea
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
begin
  insert into event_store.producer_results (
    producer_id, partition, sequence, outcome, result, offsets, appended, reason, transaction_id, ended_at, digest
  )
  values (v_producer_id, v_partition, v_sequence, v_outcome, v_result, v_offsets, v_appended, v_reason, v_transaction_id, _now, v_digest);
  -- The revision stays: each outcome follows a message that opened, which raised it.
  update event_store.producer_progress g
  set
    next_sequence = v_sequence + 1,
    committed = committed + (v_outcome = 'committed')::int,
    abandoned = abandoned + (v_outcome = 'abandoned')::int,
    updated_at = _now
  from event_store_private.progress_of(v_producer_id, v_partition) newest
  where g.ctid = newest.version;
  delete from event_store.transactions where transaction_id = v_transaction_id;
end
$$;

comment on function event_store_private.record_outcome(text, int, bigint, text, jsonb, bigint[], boolean[], text, uuid, bytea) is
'Records how a message ended and raises the producer''s next sequence.';
