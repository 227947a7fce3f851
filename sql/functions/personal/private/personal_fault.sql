-- The store cannot change a value that it cannot read, and what was personal once is not stored in plain later. The
-- schemas of two versions and the upcast between them come in any order, so this is asked whenever one is registered.
create or replace function event_store_private.personal_fault(
  v_decider text,
  v_event text,
  v_to_version bigint
)
returns text
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _schema jsonb;
  _personal jsonb; -- the paths of the version before, as the moves leave them
  _taken jsonb; -- those of the version itself
  _renamed jsonb := '[]';
  _move record;
  _path jsonb;
begin
  select coalesce(jsonb_agg(p.path), '[]') into _personal
  from event_store.event_schemas s
  cross join lateral event_store_private.personal_paths(s.schema) p(path)
  where s.decider = v_decider and s.event = v_event and s.event_version = v_to_version - 1;
  select s.schema into _schema
  from event_store.event_schemas s
  where s.decider = v_decider and s.event = v_event and s.event_version = v_to_version;
  select coalesce(jsonb_agg(p.path), '[]') into _taken from event_store_private.personal_paths(_schema) p(path);
  for _move in
    select m.move ->> 'move' as kind, m.move -> 'path' as path, m.move -> 'to' as goal, m.ordinal - 1 as number
    from event_store.event_upcasts u
    cross join lateral jsonb_array_elements(u.moves) with ordinality m(move, ordinal)
    where u.decider = v_decider and u.event = v_event and u.to_version = v_to_version
    order by m.ordinal
  loop
    select p.path into _path
    from jsonb_array_elements(_personal || case _move.kind when 'default' then _taken else '[]' end) p(path)
    where case
      when _move.kind in ('rename', 'drop') then
        -- below a sealed value
        event_store_private.leads_into(_move.path, p.path) and not event_store_private.leads_into(p.path, _move.path)
        or event_store_private.leads_into(_move.goal, p.path) and not event_store_private.leads_into(p.path, _move.goal)
      else
        event_store_private.leads_into(_move.path, p.path)
        or _move.kind = 'default' and event_store_private.leads_into(p.path, _move.path)
    end
    limit 1;
    if found then
      return format('/%s is a move of %s, which is personal: it may be renamed and dropped only', _move.number, _path);
    end if;
    if _move.kind in ('rename', 'drop') then
      select
        coalesce(jsonb_agg(coalesce(p.goes_to, p.path)) filter (where p.goes_to is not null or not p.goes), '[]'),
        _renamed || coalesce(jsonb_agg(p.goes_to) filter (where p.goes_to is not null), '[]')
      into _personal, _renamed
      from (
        select
          a.path, g.goes,
          case when g.goes then _move.goal || jsonb_path_query_array(a.path, '$[$n to last]', jsonb_build_object('n', jsonb_array_length(_move.path))) end as goes_to
        from jsonb_array_elements(_personal) a(path)
        cross join lateral (select event_store_private.leads_into(a.path, _move.path) as goes) g
      ) p;
    end if;
  end loop;
  select p.path into _path
  from jsonb_array_elements(_personal) p(path)
  where _schema is not null
    and not exists (select from jsonb_array_elements(_taken) t(path) where event_store_private.leads_into(p.path, t.path))
    and (
      _renamed @> jsonb_build_array(p.path)
      or exists (select from event_store_private.personal_paths(_schema, v_shown => true) t(path) where t.path = p.path)
    )
  limit 1;
  return case when found then format('%s was personal, and the new schema takes it in plain', _path) end;
end
$$;

comment on function event_store_private.personal_fault(text, text, bigint) is
'What makes a version of an event, or the upcast to it, show or change what is personal in the version before; null if nothing.';
