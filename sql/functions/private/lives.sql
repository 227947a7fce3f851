-- A pid is not enough: it is reused, soon after a restart. Postgres hides a session's start from a role that is neither
-- a member of its role nor of pg_read_all_stats: then the pid decides.
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
'Whether the session with this pid and start still lives.';
