-- Read after begin_transaction, the state does not change until that transaction is committed, or another one of the
-- same message is, which makes this one a duplicate.
create or replace function event_store.get_producer_state(
  v_producer_id text,
  v_partition int,
  v_key text default null
)
returns table (
  key text,
  value jsonb
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
#variable_conflict use_column
begin
  if not pg_has_role(event_store_private.caller_role(), 'event_store_reader', 'member') then
    perform event_store_private.require_producer(v_producer_id, v_partition);
  end if;
  if v_key is null then
    return query
    select s.key, s.value from event_store.producer_state s
    where s.producer_id = v_producer_id and s.partition = v_partition
    order by s.key;
  else
    return query
    select s.key, s.value from event_store.producer_state s
    where s.producer_id = v_producer_id and s.partition = v_partition and s.key = v_key
    order by s.sequence desc
    limit 1;
  end if;
end
$$;

comment on function event_store.get_producer_state(text, int, text) is
'Returns the state that producer v_producer_id keeps for v_partition of its source: v_key, or all keys in order '
'(null). MR045 it is another role''s producer, and the caller is no reader.';
revoke all on function event_store.get_producer_state(text, int, text) from public;
grant execute on function event_store.get_producer_state(text, int, text)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
