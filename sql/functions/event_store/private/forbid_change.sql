-- With `set event_store.on_forbidden_change = 'ignore'` UPDATE and DELETE do nothing and warn, as clients of fstore-sql
-- expect; a trigger cannot ignore TRUNCATE, which always raises. Two functions pass: rebase_sequencer, for
-- transaction_id, and purge_events, for events below the low-water mark. The functions for schemas and for operators
-- set event_store.registering to change registrations.
create or replace function event_store_private.forbid_change()
returns trigger
language plpgsql
set search_path = event_store, pg_temp
as $$
declare
  _ignore boolean := tg_op <> 'TRUNCATE' and current_setting('event_store.on_forbidden_change', true) = 'ignore';
begin
  if tg_op = 'DELETE' and tg_table_name = 'events' and current_setting('event_store.purging', true) = 'on'
    and has_schema_privilege('event_store_private', 'usage')
  then
    -- neither the setting nor the rights of the store's owner remove an event that is kept
    if tg_level = 'STATEMENT' or exists (
      select from event_store.event_log l
      join event_store.partitions p using (partition)
      where l."offset" = old."offset" and l.position < p.earliest_position
    ) then
      return old;
    end if;
  elsif tg_op <> 'TRUNCATE' and tg_table_name <> 'events' and current_setting('event_store.registering', true) = 'on'
    and has_schema_privilege('event_store_private', 'usage')
  then
    return coalesce(new, old);
  elsif tg_level = 'ROW' then
    return null;
  end if;
  if _ignore then
    raise warning '% of %.% was ignored', lower(tg_op), tg_table_schema, tg_table_name;
    return null;
  end if;
  raise exception '% of %.% is forbidden', lower(tg_op), tg_table_schema, tg_table_name
    using
      errcode = 'MR006',
      detail = 'Events and their registrations are facts: they are never changed or removed.',
      hint = 'Append another event that corrects it.';
end
$$;

comment on function event_store_private.forbid_change() is
'Trigger: raises MR006, or warns and skips where event_store.on_forbidden_change is ignore.';

create or replace trigger forbid_change
before delete or truncate or update of event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final,
  created_at, "offset", version, metadata
on event_store.events
for each statement execute function event_store_private.forbid_change();
comment on trigger forbid_change on event_store.events is 'Raises, or warns where changes are ignored.';

create or replace trigger forbid_restamp
before update of transaction_id on event_store.events
for each statement
when (
  current_setting('event_store.rebasing', true) is distinct from 'on'
  or not has_schema_privilege('event_store_private'::regnamespace::oid, 'usage')
)
execute function event_store_private.forbid_change();
comment on trigger forbid_restamp on event_store.events is 'Lets only rebase_sequencer change transaction_id.';

create or replace trigger forbid_change
before update or delete or truncate on event_store.deciders
for each statement execute function event_store_private.forbid_change();
comment on trigger forbid_change on event_store.deciders is 'Raises, or warns where changes are ignored.';

create or replace trigger forbid_change
before update or delete or truncate on event_store.event_schemas
for each statement execute function event_store_private.forbid_change();
comment on trigger forbid_change on event_store.event_schemas is 'Raises, or warns where changes are ignored.';

create or replace trigger forbid_change
before update or delete or truncate on event_store.event_upcasts
for each statement execute function event_store_private.forbid_change();
comment on trigger forbid_change on event_store.event_upcasts is 'Raises, or warns where changes are ignored.';

create or replace trigger skip_change
before delete or update of event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final,
  created_at, "offset", version, metadata
on event_store.events
for each row execute function event_store_private.forbid_change();
comment on trigger skip_change on event_store.events is 'Skips the rows where changes are ignored.';

create or replace trigger skip_restamp
before update of transaction_id on event_store.events
for each row
when (
  current_setting('event_store.rebasing', true) is distinct from 'on'
  or not has_schema_privilege('event_store_private'::regnamespace::oid, 'usage')
)
execute function event_store_private.forbid_change();
comment on trigger skip_restamp on event_store.events is 'Skips the rows where changes are ignored.';

create or replace trigger skip_change
before update or delete on event_store.deciders
for each row execute function event_store_private.forbid_change();
comment on trigger skip_change on event_store.deciders is 'Skips the rows where changes are ignored.';

create or replace trigger skip_change
before update or delete on event_store.event_schemas
for each row execute function event_store_private.forbid_change();
comment on trigger skip_change on event_store.event_schemas is 'Skips the rows where changes are ignored.';

create or replace trigger skip_change
before update or delete on event_store.event_upcasts
for each row execute function event_store_private.forbid_change();
comment on trigger skip_change on event_store.event_upcasts is 'Skips the rows where changes are ignored.';
