-- As who may use what is that role's, unless the decider is that of a captured table, which is its capture's alone.
-- Such a decider always has an owner.
-- In plpgsql, so that Postgres does not write it into appends: it would prepare this look for each event of any
-- decider.
create or replace function event_store_private.may_append(
  v_decider text,
  v_owner text
)
returns boolean
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  return event_store_private.may_use(v_owner) and not exists (select from event_store.captured_tables c where c.decider = v_decider);
end
$$;

comment on function event_store_private.may_append(text, text) is
'Whether the calling role may append to a decider that belongs to a role.';
