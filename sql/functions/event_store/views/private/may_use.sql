-- A dropped role has no members. Postgres inlines this; for a view that the login registered it costs one comparison.
create or replace function event_store_private.may_use(
  v_owner text
)
returns boolean
language sql
stable
parallel safe
as $$
  -- the caller, also inside a security definer function
  select v_owner = event_store_private.caller_role()
    or event_store_private.is_operator()
    or coalesce(pg_has_role(event_store_private.caller_role(), to_regrole(quote_ident(v_owner)), 'member'), false)
$$;

comment on function event_store_private.may_use(text) is
'Whether the calling role is a member of a role, or operates the store.';
