-- Wall-clock time, even inside a long transaction.
-- Tests move it with `set event_store.clock = '2030-01-01 00:00:00+00'`. Only a role with rights on event_store_private
-- can: by moving it, a role could take over any lease.
create or replace function event_store_private.clock()
returns timestamptz
language sql
volatile
parallel safe
as $$
  select case
    when coalesce(current_setting('event_store.clock', true), '') <> ''
      and has_schema_privilege(event_store_private.caller_role(), 'event_store_private', 'usage')
    then current_setting('event_store.clock')::timestamptz
    else clock_timestamp()
  end
$$;

comment on function event_store_private.clock() is
'The time by which leases expire and events are stamped; for the role that migrated, the setting event_store.clock'
' overrides it.';
