-- A member of the owning role may, as in may_use, unless the decider is that of a captured table: only the capture
-- appends to it. Such a decider always has an owner.
-- In plpgsql, so that Postgres does not inline it into appends: it would prepare this look-up for each event of any
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
