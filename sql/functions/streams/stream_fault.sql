-- The rights as has_…_privilege has them, so those of roles that the login inherits too.
-- Example: select stream_fault('shop_web', 'orders')
create or replace function event_store_platform.stream_fault(
  v_login text,
  v_model text default null
)
returns setof text
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  with recursive model as (
    select c.oid
    from read_models.declarations d
    join pg_class c on c.relname = d.model and c.relnamespace = 'read_models'::regnamespace and c.relkind = 'v'
    where d.model = v_model and d.serves
  ), below(oid) as (
    select m.oid from model m
    union
    select d.refobjid
    from below b
    join pg_rewrite w on w.ev_class = b.oid
    join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid and d.refclassid = 'pg_class'::regclass
  ), login as (
    select r.oid from pg_roles r where r.rolname = v_login
  ), may as (
    select a.attname
    from model m
    cross join login l
    join pg_attribute a on a.attrelid = m.oid and a.attnum > 0 and not a.attisdropped
    where has_schema_privilege(l.oid, 'read_models', 'usage') and has_column_privilege(l.oid, m.oid, a.attnum, 'select')
  )
  select case
    when v_model is null then (
      select format('%s is no member of event_store_reader, which reads events.', v_login)
      where not exists (select from login l where pg_has_role(l.oid, 'event_store_reader', 'usage'))
    )
    when not exists (select from may) then
      format('%s may not select from a read model %L, or there is none.', v_login, left(v_model, 100))
    when not exists (select from read_models.feeds f where f.model = v_model and f.tells) then
      format('Read model %s has no feed.', v_model)
    else coalesce(
      (
        select format('%s has row security, which a stream does not apply: read it by SQL.', min(b.oid::regclass::text))
        from below b join pg_class c using (oid)
        where c.relrowsecurity
        having count(*) > 0
      ),
      (
        select format('%s may not select %s, which the feed of read model %s tells.', v_login, string_agg(t.name, ', '), v_model)
        from read_models.feeds f cross join unnest(f.columns) t(name)
        where f.model = v_model and t.name not in (select m.attname from may m)
        having count(*) > 0
      )
    )
  end
  -- null would say that it may
  where v_login is not null
$$;

comment on function event_store_platform.stream_fault(text, text) is
'Says why a login may not read the read model v_model over HTTP, or without one the log: it has no feed, the login may select none of it '
'or not all that the feed tells, or a table below has row security. Returns null if it may.';
revoke all on function event_store_platform.stream_fault(text, text) from public;
grant execute on function event_store_platform.stream_fault(text, text) to event_store_owner;
