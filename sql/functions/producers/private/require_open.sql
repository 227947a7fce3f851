-- Refuses a transaction that has ended or passed its deadline.
create or replace function event_store_private.require_open(
  v_transaction event_store.transactions
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  if v_transaction.state <> 'open' then
    perform event_store_private.refuse_ended_transaction(v_transaction.transaction_id, v_transaction.state);
  elsif v_transaction.expires_at <= event_store_private.clock() then
    perform event_store_private.refuse_ended_transaction(
      v_transaction.transaction_id, format('expired, its deadline was %s', v_transaction.expires_at)
    );
  end if;
end
$$;

comment on function event_store_private.require_open(event_store.transactions) is
'MR027 unless a transaction is open and its deadline has not passed.';
