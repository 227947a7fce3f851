-- opened counts how its transactions ended, and the open ones. A crash of the server loses open ones; a standby, which
-- cannot see them, counts the lost ones as open.
create or replace function event_store_platform.producer_statistics(
  v_producer_id text default null
)
returns table (
  producer_id text,
  partition int,
  epoch bigint,
  next_sequence bigint,
  received bigint,
  duplicates bigint,
  refused bigint,
  opened bigint,
  committed bigint,
  aborted bigint,
  abandoned bigint,
  expired bigint,
  superseded bigint,
  open bigint,
  registered_at timestamptz,
  updated_at timestamptz
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select
    p.producer_id, p.partition, p.epoch, g.next_sequence, g.received, g.duplicates, g.refused, g.opened, g.committed, g.aborted,
    g.abandoned, g.expired, g.superseded,
    coalesce(
      event_store_private.open_transactions(p.producer_id, p.partition),
      g.opened - g.committed - g.aborted - g.abandoned - g.expired - g.superseded
    ),
    p.registered_at, greatest(p.registered_at, g.updated_at)
  from event_store.producers p
  cross join lateral (
    select * from event_store.producer_progress r
    where r.producer_id = p.producer_id and r.partition = p.partition
    order by r.revision desc
    limit 1
  ) g
  where v_producer_id is null or p.producer_id = v_producer_id
  order by p.producer_id, p.partition
$$;

comment on function event_store_platform.producer_statistics(text) is
'Returns one row per partition of each producer, or of v_producer_id: its position and the outcomes of its messages. '
'received is duplicates, refused and opened together.';
revoke all on function event_store_platform.producer_statistics(text) from public;
grant execute on function event_store_platform.producer_statistics(text)
to event_store_consumer, event_store_reader, event_store_owner;
