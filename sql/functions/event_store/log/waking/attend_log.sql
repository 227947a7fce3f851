-- The caller also dispatches, so consumers in open transactions leave both to it. It writes nothing that a commit would
-- wait for.
-- The caller may miss an append where an open transaction may have appended before it could see that the caller sleeps,
-- or where the server allows prepared transactions: there appends do not notify. Commits before this call do not notify
-- either.
-- Example: select attend_log(2, true)
create or replace function event_store_platform.attend_log(
  v_attended_s bigint,
  v_sleeps boolean default false
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _seconds constant bigint := coalesce(v_attended_s, -1);
begin
  if _seconds not between 0 and 10 then
    perform event_store_private.refuse_request(
      format('v_attended_s is %s', coalesce(v_attended_s::text, 'null')), 'v_attended_s must be from 0 to 10.'
    );
  end if;
  perform setval(
    'event_store.attended_seq',
    case
      when _seconds = 0 then 0
      else 2 * floor(extract(epoch from clock_timestamp()) * 1000)::bigint + 2000 * _seconds + coalesce(v_sleeps, false)::int
    end
  );
  -- Not by a snapshot: it does not list a transaction that is younger than the last one that ended.
  return not event_store_private.notifies_appends()
    or exists (
      select from pg_stat_get_activity(null) a
      where a.backend_xid is not null and a.pid <> pg_backend_pid()
        and a.datid = (select d.oid from pg_database d where d.datname = current_database())
    );
end
$$;

comment on function event_store_platform.attend_log(bigint, boolean) is
'Says that the caller gives events their positions for the next v_attended_s seconds (0: no longer), and with v_sleeps that '
'an append wakes it by the channel event_store_appended. Returns whether it must look again soon all the same: a transaction '
'may have appended before. Look once more before sleeping. MR005 v_attended_s is null or not from 0 to 10.';
revoke all on function event_store_platform.attend_log(bigint, boolean) from public;
grant execute on function event_store_platform.attend_log(bigint, boolean) to event_store_consumer, event_store_owner;
