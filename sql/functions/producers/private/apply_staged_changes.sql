-- It applies the last change of each key, and all events. The caller has locked the producer's row.
create or replace function event_store_private.apply_staged_changes(
  v_transaction event_store.transactions,
  v_result jsonb
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _events jsonb;
  _keys text[];
  _values jsonb[];
begin
  select jsonb_agg(e.element order by c.ordinal, e.number) into _events
  from event_store.staged_changes c
  cross join jsonb_array_elements(c.events) with ordinality e(element, number)
  where c.transaction_id = v_transaction.transaction_id and c.events is not null;
  select array_agg(c.key), array_agg(c.value) into _keys, _values
  from (
    select distinct on (s.key) s.key, s.value
    from event_store.staged_changes s
    where s.transaction_id = v_transaction.transaction_id and s.key is not null
    order by s.key, s.ordinal desc
  ) c;
  perform event_store_private.apply_message(
    v_transaction.producer_id, v_transaction.partition, v_transaction.sequence, _events, _keys, _values, v_result,
    v_transaction.transaction_id, v_transaction.digest
  );
end
$$;

comment on function event_store_private.apply_staged_changes(event_store.transactions, jsonb) is
'Applies the staged changes of a transaction and records its result. MR001 to MR005, MR034 as append_events.';
