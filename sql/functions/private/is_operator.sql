-- The role that migrated may be no member if another role had created the roles. Postgres inlines it.
create or replace function event_store_private.is_operator()
returns boolean
language sql
stable
parallel safe
as $$
  -- only the role that migrated may use the private schema
  select pg_has_role(event_store_private.caller_role(), 'event_store_owner', 'member')
    or has_schema_privilege(event_store_private.caller_role(), 'event_store_private', 'usage')
$$;

comment on function event_store_private.is_operator() is
'Whether the calling role is a member of event_store_owner, or migrated the store.';
