-- The rights as has_…_privilege has them, so those of roles that the login inherits too.
-- Example: select * from stream_rights('shop_web', 'orders')
create or replace function event_store_platform.stream_rights(
  v_login text,
  v_model text default null
)
returns table (
  reads_log boolean,
  columns text[],
  hidden_keys text[],
  guarded_by text
)
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
  ), below(oid, depth) as (
    select m.oid, 0 from model m
    union
    select d.refobjid, least(b.depth + 1, 2)
    from below b
    join pg_rewrite w on w.ev_class = b.oid
    join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid and d.refclassid = 'pg_class'::regclass
    where d.refobjid <> b.oid
  ), keys as (
    -- the model's own table: others are below the views of models that it looks up
    select k.attname from below b join pg_index i on i.indrelid = b.oid and i.indisprimary
    join pg_attribute k on k.attrelid = b.oid and k.attnum = any (i.indkey)
    where b.depth = 1
  )
  select
    pg_has_role(r.oid, 'event_store_reader', 'usage'),
    array_agg(a.attname::text order by a.attnum) filter (where p.may),
    array_agg(a.attname::text order by a.attnum) filter (where not p.may and a.attname in (select k.attname from keys k)),
    (
      select min(b.oid::regclass::text) from below b join pg_class c using (oid)
      where c.relrowsecurity
    )
  from pg_roles r
  left join model m on true
  left join pg_attribute a on a.attrelid = m.oid and a.attnum > 0 and not a.attisdropped
  left join lateral (
    select has_schema_privilege(r.oid, 'read_models', 'usage') and has_column_privilege(r.oid, m.oid, a.attnum, 'select')
  ) p(may) on true
  where r.rolname = v_login
  group by r.oid
$$;

comment on function event_store_platform.stream_rights(text, text) is
'Returns whether a login reads the log, which columns of the read model v_model it may select, which of its key it may not, and '
'the table with row security that the model reads; null for a read model that does not exist.';
revoke all on function event_store_platform.stream_rights(text, text) from public;
grant execute on function event_store_platform.stream_rights(text, text) to event_store_owner;
