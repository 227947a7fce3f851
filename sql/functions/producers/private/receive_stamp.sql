-- From here to the end of the transaction, no other message of this partition of the producer is judged. A duplicate
-- with a digest that differs from the first one's is refused.
create or replace function event_store_private.receive_stamp(
  v_producer_id text,
  v_partition int,
  v_epoch bigint,
  v_sequence bigint,
  v_digest bytea
)
returns text
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _producer event_store.producers;
  _progress record;
  _status text;
begin
  perform event_store_private.require_producer_id(v_producer_id, v_partition);
  if (v_epoch > 0 and v_sequence between 0 and 9223372036854775806) is not true then
    perform event_store_private.refuse_request(
      format('v_epoch is %s, v_sequence is %s', coalesce(v_epoch::text, 'null'), coalesce(v_sequence::text, 'null')),
      'Epochs count from 1, sequences from 0 to 9223372036854775806: register_producer returns both.'
    );
  end if;
  if octet_length(v_digest) not between 1 and 64 then
    perform event_store_private.refuse_request(
      format('v_digest has %s bytes', octet_length(v_digest)), 'Pass 1 to 64 bytes, such as sha256() of the message.'
    );
  end if;
  select * into _producer from event_store.producers
  where producer_id = v_producer_id and partition = v_partition
  for no key update;
  if not found then
    perform event_store_private.refuse_unknown_producer(v_producer_id, v_partition);
  elsif not event_store_private.may_use(_producer.owner) then
    perform event_store_private.refuse_foreign_producer(v_producer_id, v_partition, _producer.owner);
  end if;
  -- a statement of its own, after the lock: as it is now
  select * into _progress from event_store_private.progress_of(v_producer_id, v_partition);
  if not found then
    perform event_store_private.refuse_unknown_producer(v_producer_id, v_partition);
  end if;
  _status := event_store_private.judge_stamp(v_epoch, v_sequence, _producer.epoch, _progress.next_sequence);
  if _status = 'duplicate' then
    perform event_store_private.refuse_other_message(v_producer_id, v_partition, v_sequence)
    from event_store.producer_results r
    where r.producer_id = v_producer_id and r.partition = v_partition and r.sequence = v_sequence and r.digest <> v_digest;
  end if;
  update event_store.producer_progress
  set
    revision = revision + 1,
    received = received + 1,
    opened = opened + (_status = 'opened')::int,
    duplicates = duplicates + (_status = 'duplicate')::int,
    refused = refused + (_status not in ('opened', 'duplicate'))::int,
    updated_at = event_store_private.clock()
  where ctid = _progress.version;
  return _status;
end
$$;

comment on function event_store_private.receive_stamp(text, int, bigint, bigint, bytea) is
'Locks the producer, judges a message and counts it; returns the verdict of judge_stamp. MR005, MR023, MR028, MR045.';
