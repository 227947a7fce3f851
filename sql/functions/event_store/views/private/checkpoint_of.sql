-- Found by its newest revision: dead versions of the row stay while a session holds an old snapshot. Callers set
-- enable_bitmapscan off: from statistics that know one row of each, Postgres would fetch all versions and sort them.
-- Postgres inlines it. For all log partitions: from event_store.log_partitions p cross join lateral
-- checkpoint_of(v_view, p.partition). version is the row's ctid: a session that has the row locked may change it by
-- that, without another search.
create or replace function event_store_private.checkpoint_of(
  v_view text,
  v_partition int
)
returns table (
  partition int,
  "position" bigint,
  lease_owner text,
  lease_token bigint,
  leased_until timestamptz,
  leased_from bigint,
  leased_to bigint,
  rebuilds boolean,
  revision bigint,
  version tid
)
language sql
stable
as $$
  select
    c.partition, c.position, c.lease_owner, c.lease_token, c.leased_until, c.leased_from, c.leased_to, c.rebuilds, c.revision, c.ctid
  from event_store.checkpoints c
  where c.view = v_view and c.partition = v_partition
  order by c.revision desc
  limit 1
$$;

comment on function event_store_private.checkpoint_of(text, int) is
'The checkpoint of a view in a log partition, without a look at dead versions of the row.';
