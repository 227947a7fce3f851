-- Found by its newest revision: dead versions of the row stay while a session holds an old snapshot (see
-- checkpoint_of). Postgres inlines it. version is the row's ctid: the holder of the producer's lock may change the row
-- by it, without another search.
create or replace function event_store_private.progress_of(
  v_producer_id text,
  v_partition int
)
returns table (
  next_sequence bigint,
  version tid
)
language sql
stable
as $$
  select g.next_sequence, g.ctid
  from event_store.producer_progress g
  where g.producer_id = v_producer_id and g.partition = v_partition
  order by g.revision desc
  limit 1
$$;

comment on function event_store_private.progress_of(text, int) is
'The next sequence of a producer, read without dead versions of the row.';
