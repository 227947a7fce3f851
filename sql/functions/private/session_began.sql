-- With its pid it identifies the session (lives). Null if Postgres hides it from the role that migrated.
create or replace function event_store_private.session_began()
returns timestamptz
language sql
volatile
as $$
  select a.backend_start from pg_stat_get_activity(pg_backend_pid()) a
$$;

comment on function event_store_private.session_began() is 'When the calling session began.';
