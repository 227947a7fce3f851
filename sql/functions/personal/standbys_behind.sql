-- A running base backup ends later, and so has it; a consumer of a logical slot has no tables of ours.
-- Example: select * from standbys_behind(null)
create or replace function event_store_platform.standbys_behind(
  v_lsn pg_lsn default null
)
returns table (
  standby text,
  lsn text
)
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
  select coalesce(r.application_name, format('of pid %s', r.pid)), n.lsn::text
  from (select coalesce(v_lsn, pg_current_wal_flush_lsn()) as lsn) n
  cross join pg_stat_replication r
  where r.state is distinct from 'backup'
    and (coalesce(r.replay_lsn, r.flush_lsn) >= n.lsn) is not true
    and not exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')
$$;

comment on function event_store_platform.standbys_behind(pg_lsn) is
'Returns the connected standbys that have not replayed up to v_lsn, or where it is null up to now, and that position. One '
'that this role may not see (pg_read_all_stats) counts as behind.';
revoke all on function event_store_platform.standbys_behind(pg_lsn) from public;
grant execute on function event_store_platform.standbys_behind(pg_lsn) to event_store_owner;
