-- Raises that a transaction of a producer is not known.
create or replace function event_store_private.refuse_unknown_transaction(
  v_transaction_id uuid
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'transaction is unknown'
    using
      errcode = 'MR026',
      detail = format('transaction %s: never begun, lost with a crash of the server, or ended without an effect long ago', v_transaction_id),
      hint = 'Begin again with the same sequence: it is a duplicate if it was committed.';
end
$$;

comment on function event_store_private.refuse_unknown_transaction(uuid) is 'Raises MR026 and names the transaction.';
