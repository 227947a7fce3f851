-- If the transaction has one snapshot and a purge ran since, this is a serialization failure. Only purge_events waits
-- for it.
create or replace function event_store_private.hold_off_purges(
  v_decider_ids text[]
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  perform from event_store.log_partitions p
  where p.partition in (
    select event_store.stream_partition(d.decider_id, (select count(*) from event_store.log_partitions))
    from unnest(v_decider_ids) d(decider_id)
  )
  order by p.partition
  for key share;
end
$$;

comment on function event_store_private.hold_off_purges(text[]) is
'Blocks purges of events of some streams until the transaction ends.';
