-- Locks a producer's row, judges a message and counts it. From here to the end of the transaction nobody else's message
-- of this partition of the producer is judged.
create or replace function event_store_private.receive_stamp(
  v_producer_id text,
  v_partition int,
  v_epoch bigint,
  v_sequence bigint
)
returns text
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _status text;
  _owner text;
begin
  perform event_store_private.require_producer_id(v_producer_id, v_partition);
  if (v_epoch > 0 and v_sequence >= 0) is not true then
    perform event_store_private.refuse_request(
      format('v_epoch is %s, v_sequence is %s', coalesce(v_epoch::text, 'null'), coalesce(v_sequence::text, 'null')),
      'Epochs count from 1, sequences from 0: register_producer returns both.'
    );
  end if;
  update event_store.producers
  set
    received = received + 1,
    opened = opened + (event_store_private.judge_stamp(v_epoch, v_sequence, epoch, next_sequence) = 'opened')::int,
    duplicates = duplicates + (event_store_private.judge_stamp(v_epoch, v_sequence, epoch, next_sequence) = 'duplicate')::int,
    refused = refused + (event_store_private.judge_stamp(v_epoch, v_sequence, epoch, next_sequence) not in ('opened', 'duplicate'))::int,
    updated_at = event_store_private.clock()
  where producer_id = v_producer_id and partition = v_partition
  returning event_store_private.judge_stamp(v_epoch, v_sequence, epoch, next_sequence), owner into _status, _owner;
  if not found then
    perform event_store_private.refuse_unknown_producer(v_producer_id, v_partition);
  elsif not event_store_private.may_use(_owner) then
    perform event_store_private.refuse_foreign_producer(v_producer_id, v_partition, _owner); -- and nothing is counted
  end if;
  return _status;
end
$$;

comment on function event_store_private.receive_stamp(text, int, bigint, bigint) is
'Locks the producer, judges a message and counts it; returns what judge_stamp says. MR005, MR023, MR045.';
