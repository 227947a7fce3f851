-- Registers an instance of a producer and returns where it goes on. Each call raises the epoch: what an instance of
-- before still has open is aborted, and what it sends is refused from now on.
-- Example: select epoch, next_sequence from register_producer('orders.csv')
create or replace function event_store.register_producer(
  v_producer_id text,
  v_partition int default 0
)
returns table (
  producer_id text,
  partition int,
  epoch bigint,
  next_sequence bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- by index, tables with or without statistics
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
  _producer event_store.producers;
begin
  perform event_store_private.require_producer_id(v_producer_id, v_partition);
  insert into event_store.producers as p (producer_id, partition, epoch, registered_at, updated_at)
  values (v_producer_id, v_partition, 1, _now, _now)
  on conflict on constraint producers_pkey
  do update set epoch = p.epoch + 1, registered_at = _now, updated_at = _now
  returning p.* into _producer;
  -- who is at a transaction keeps it until its own call is fenced: to wait for them could be a deadlock
  perform event_store_private.end_transactions(
    v_producer_id,
    v_partition,
    array(
      select t.transaction_id
      from event_store.transactions t
      where t.producer_id = v_producer_id and t.partition = v_partition and t.state = 'open' and t.epoch < _producer.epoch
      for update skip locked
    ),
    'aborted'
  );
  return query select _producer.producer_id, _producer.partition, _producer.epoch, _producer.next_sequence;
end
$$;

comment on function event_store.register_producer(text, int) is
'Registers an instance of producer v_producer_id for v_partition of its source and returns its epoch and the sequence'
' that it goes on with. Each call raises the epoch, aborts what earlier instances have open and refuses what they '
'send. MR005 an argument is null, empty or out of range.';
revoke all on function event_store.register_producer(text, int) from public;
grant execute on function event_store.register_producer(text, int) to event_store_writer, event_store_owner;
