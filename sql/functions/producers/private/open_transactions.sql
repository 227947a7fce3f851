-- How many transactions of a producer are open; null on a standby, which has no data of unlogged tables.
create or replace function event_store_private.open_transactions(
  v_producer_id text,
  v_partition int
)
returns bigint
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  -- not planned there either
  if pg_is_in_recovery() then
    return null;
  end if;
  return (
    select count(*) from event_store.transactions t
    where t.producer_id = v_producer_id and t.partition = v_partition and t.state = 'open'
  );
end
$$;

comment on function event_store_private.open_transactions(text, int) is
'How many transactions of a producer are open; null on a standby.';
