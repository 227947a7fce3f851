-- The caller has locked the producer's row. The staged changes are deleted; the transactions' rows stay for a while, so
-- that a late caller learns how they ended.
create or replace function event_store_private.end_transactions(
  v_producer_id text,
  v_partition int,
  v_transaction_ids uuid[],
  v_state text
)
returns bigint
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _ended bigint;
begin
  update event_store.transactions
  set state = v_state, expires_at = null, ended_at = event_store_private.clock()
  where transaction_id = any (v_transaction_ids) and state = 'open';
  get diagnostics _ended = row_count;
  if _ended > 0 then
    delete from event_store.staged_changes where transaction_id = any (v_transaction_ids);
    update event_store.producer_progress g
    set
      revision = g.revision + 1,
      aborted = aborted + case v_state when 'aborted' then _ended else 0 end,
      expired = expired + case v_state when 'expired' then _ended else 0 end,
      superseded = superseded + case v_state when 'superseded' then _ended else 0 end,
      updated_at = event_store_private.clock()
    from event_store_private.progress_of(v_producer_id, v_partition) newest
    where g.ctid = newest.version;
  end if;
  return _ended;
end
$$;

comment on function event_store_private.end_transactions(text, int, uuid[], text) is
'Ends open transactions of a producer without an effect, counts them, and returns how many.';
