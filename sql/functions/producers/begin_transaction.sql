-- A refusal is an answer, because an error would undo its count:
--   opened         transaction_id and its deadline; stage changes and commit
--   duplicate      it was committed or abandoned before; purge_results deletes answers
--   fenced         epoch is that of the other instance
--   unknown_epoch  register again
-- Several transactions of one message may be open, for example if it is sent again after its sender was killed.
-- v_digest is, for example, sha256() of the message as the source has it.
-- Example: select status, transaction_id, result from begin_transaction('orders.csv', 0, 1, 41)
create or replace function event_store.begin_transaction(
  v_producer_id text,
  v_partition int,
  v_epoch bigint,
  v_sequence bigint,
  v_timeout_s bigint default 60,
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
  _transaction event_store.transactions;
  _now timestamptz;
begin
  if (v_timeout_s between 1 and 2147483647) is not true then
    perform event_store_private.refuse_request(
      format('v_timeout_s is %s', coalesce(v_timeout_s::text, 'null')), 'A transaction may take 1 s to 2147483647 s.'
    );
  end if;
  _status := event_store_private.receive_stamp(v_producer_id, v_partition, v_epoch, v_sequence, v_digest);
  if _status = 'opened' then
    _now := event_store_private.clock();
    insert into event_store.transactions as t (producer_id, partition, epoch, sequence, begun_at, expires_at, digest)
    values (v_producer_id, v_partition, v_epoch, v_sequence, _now, _now + make_interval(secs => v_timeout_s), v_digest)
    returning t.* into _transaction;
  end if;
  return query
  select _status, _transaction.transaction_id, _transaction.expires_at, coalesce(r.outcome, case _status when 'duplicate' then 'committed' end),
    r.result, r.offsets, r.appended, g.next_sequence, p.epoch
  from event_store.producers p
  cross join lateral event_store_private.progress_of(p.producer_id, p.partition) g
  left join event_store.producer_results r
    on _status = 'duplicate' and r.producer_id = v_producer_id and r.partition = v_partition and r.sequence = v_sequence
  where p.producer_id = v_producer_id and p.partition = v_partition;
end
$$;

comment on function event_store.begin_transaction(text, int, bigint, bigint, bigint, bytea) is
'Opens a transaction for message v_sequence of a producer, to be committed within v_timeout_s, or returns the reason '
'in status: duplicate (with the original outcome, result and offsets; null offsets: purged since), gap (next_sequence '
'must come first), fenced (another instance registered since v_epoch), unknown_epoch (not registered). Such an answer '
'is no error. Several transactions of one message may be open: the first commit decides. MR005 an argument is null or '
'out of range; MR023 unknown producer; MR028 the number came before with another v_digest; MR045 another role''s.';
revoke all on function event_store.begin_transaction(text, int, bigint, bigint, bigint, bytea) from public;
grant execute on function event_store.begin_transaction(text, int, bigint, bigint, bigint, bytea)
to event_store_writer, event_store_owner;
