-- Even inside a security definer function. A pool such as PostgREST's logs in once and sets a role for each request:
-- that role's rights count, not the pool's. Postgres inlines it.
create or replace function event_store_private.caller_role()
returns name
language sql
stable
parallel safe
as $$
  select case current_setting('role') when 'none' then session_user else current_setting('role')::name end
$$;

comment on function event_store_private.caller_role() is
'The role that gives the rights: the one that SET ROLE chose, or else the login.';
