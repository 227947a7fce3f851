-- Until a transaction is forgotten, a late caller learns how it ended. A locked producer is left to the next call.
-- millrace run sequencer calls it every minute. A transaction that idles after this call is ended after ten seconds,
-- because it blocks other callers' producers.
create or replace function event_store_platform.expire_transactions(
  v_keep_s bigint default 86400,
  v_limit int default 1000
)
returns table (
  expired bigint,
  removed bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
  _producer record;
begin
  if (v_keep_s between 0 and 2147483647 and v_limit > 0) is not true then
    perform event_store_private.refuse_request(
      format('v_keep_s is %s, v_limit is %s', coalesce(v_keep_s::text, 'null'), coalesce(v_limit::text, 'null')),
      'v_keep_s is 0 to 2147483647, v_limit at least 1.'
    );
  end if;
  perform event_store_private.bound_idle_transaction();
  expired := 0;
  for _producer in
    select t.producer_id, t.partition, array_agg(t.transaction_id) as transaction_ids
    from (
      select producer_id, partition, transaction_id
      from event_store.transactions
      where expires_at <= _now
      order by expires_at
      limit v_limit
    ) t
    group by t.producer_id, t.partition
  loop
    perform from event_store.producers
    where producer_id = _producer.producer_id and partition = _producer.partition
    for no key update skip locked;
    continue when not found;
    expired := expired + event_store_private.end_transactions(
      _producer.producer_id,
      _producer.partition,
      array(
        select transaction_id from event_store.transactions
        where transaction_id = any (_producer.transaction_ids)
        for update skip locked
      ),
      'expired'
    );
  end loop;
  delete from event_store.transactions
  where transaction_id in (
    select transaction_id
    from event_store.transactions
    where ended_at <= _now - make_interval(secs => v_keep_s)
    order by ended_at
    limit v_limit
    for update skip locked
  );
  get diagnostics removed = row_count;
  return next;
end
$$;

comment on function event_store_platform.expire_transactions(bigint, int) is
'Ends transactions past their deadline, forgets those that ended without an effect v_keep_s ago, up to v_limit of '
'each, and returns how many. It never waits. MR005 an argument is out of range.';
revoke all on function event_store_platform.expire_transactions(bigint, int) from public;
grant execute on function event_store_platform.expire_transactions(bigint, int) to event_store_consumer, event_store_owner;
