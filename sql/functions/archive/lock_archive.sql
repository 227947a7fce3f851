-- Example: select lock_archive(3, 'run 17')
create or replace function event_store_platform.lock_archive(
  v_partition int,
  v_owner text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
begin
  if (octet_length(v_owner) between 1 and 1024) is not true then
    perform event_store_private.refuse_request(
      format('v_owner has %s bytes', coalesce(octet_length(v_owner)::text, 'no')), 'A writer is named by 1 to 1024 bytes: the id of a run, say.'
    );
  end if;
  perform event_store_private.require_partition(v_partition);
  insert into event_store.archive_locks as l (partition, owner, pid, session_began_at, locked_until)
  values (v_partition, v_owner, pg_backend_pid(), event_store_private.session_began(), _now + interval '15 minutes')
  on conflict on constraint archive_locks_pkey
  do update set owner = excluded.owner, pid = excluded.pid, session_began_at = excluded.session_began_at,
    locked_until = excluded.locked_until
    where l.owner = v_owner or l.locked_until <= _now or not event_store_private.lives(l.pid, l.session_began_at);
  return found;
end
$$;

comment on function event_store_platform.lock_archive(int, text) is
'Makes v_owner the only writer of the archive of log partition v_partition until its session ends, or for 15 minutes '
'since it last called this; returns false at once if another owner is. MR005 v_owner is empty or too long; MR013 '
'unknown log partition.';
revoke all on function event_store_platform.lock_archive(int, text) from public;
grant execute on function event_store_platform.lock_archive(int, text) to event_store_owner;
