-- Raises that a producer is not registered.
create or replace function event_store_private.refuse_unknown_producer(
  v_producer_id text,
  v_partition int
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'producer is not registered'
    using
      errcode = 'MR023',
      detail = format('producer %L, partition %s', v_producer_id, v_partition),
      hint = 'Register it: select * from register_producer(producer_id, partition).';
end
$$;

comment on function event_store_private.refuse_unknown_producer(text, int) is 'Raises MR023 and names the producer.';
