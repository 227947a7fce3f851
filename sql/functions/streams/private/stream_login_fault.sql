-- A member of a superuser or of the role that migrated may become it by SET ROLE.
create or replace function event_store_private.stream_login_fault(
  v_login name
)
returns text
language sql
stable
as $$
  select case
    when r.rolcanlogin is not true then format('%s is no login of this server.', v_login)
    when not has_database_privilege(r.oid, current_database(), 'connect') then format('%s may not connect to this database.', v_login)
    when exists (
      select from pg_roles o
      where (
        o.rolsuper or o.rolname = 'event_store_owner'
        or o.oid = (select n.nspowner from pg_namespace n where n.nspname = 'event_store')
      ) and pg_has_role(r.oid, o.oid, 'member')
    ) then format('%s is a superuser, or a member of event_store_owner or of the role that migrated: that is more than reading.', v_login)
  end
  from (values (v_login)) asked(login)
  left join pg_roles r on r.rolname = asked.login
$$;

comment on function event_store_private.stream_login_fault(name) is
'Why tokens give nothing of the login v_login; null if they may.';
