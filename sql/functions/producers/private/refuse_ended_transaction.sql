-- Raises that a transaction of a producer has ended, and how.
create or replace function event_store_private.refuse_ended_transaction(
  v_transaction_id uuid,
  v_ended text
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'transaction has ended'
    using
      errcode = 'MR027',
      detail = format('transaction %s: %s', v_transaction_id, v_ended),
      hint = 'Begin again with the same sequence: it is a duplicate if it was committed or abandoned.';
end
$$;

comment on function event_store_private.refuse_ended_transaction(uuid, text) is
'Raises MR027 with how the transaction ended.';
