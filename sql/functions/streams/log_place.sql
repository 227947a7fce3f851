-- After a restore or a failover positions may be given out a second time: a place of another store is none of this one.
-- Example: select store, marks from log_place()
create or replace function event_store_platform.log_place()
returns table (
  store text,
  earliest bigint[],
  marks bigint[]
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
  select
    left(md5(concat_ws(
      ' ', i.system_identifier, i.database_oid,
      -- a promotion begins a timeline at once, and records it in the control file later
      case
        when pg_is_in_recovery() then (select upper(lpad(to_hex(c.timeline_id), 8, '0')) from pg_control_checkpoint() c)
        else left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
      end
    )), 8),
    l.earliest, l.marks
  from event_store_platform.database_identity() i
  cross join (
    select
      array_agg(p.earliest_position order by p.partition) as earliest,
      array_agg(p.high_water_mark order by p.partition) as marks
    from event_store.partitions p
  ) l
$$;

comment on function event_store_platform.log_place() is
'Returns the end of the log (marks, and the earliest positions, of all log partitions in order) and the store that it is of: '
'another one after a restore, or once another server was promoted.';
revoke all on function event_store_platform.log_place() from public;
grant execute on function event_store_platform.log_place() to event_store_reader, event_store_owner;
