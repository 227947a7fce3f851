-- A pid alone is given again, soon after a restart. Postgres hides when a session began from a role that is neither a
-- member of its role nor of pg_read_all_stats: then the pid decides.
create or replace function event_store_private.lives(
  v_pid int,
  v_began_at timestamptz
)
returns boolean
language sql
volatile
as $$
  select exists (select from pg_stat_get_activity(v_pid) a where coalesce(a.backend_start = v_began_at, true))
$$;

comment on function event_store_private.lives(int, timestamptz) is
'Whether the session lives that had this pid and began then.';
