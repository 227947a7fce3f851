-- A move that passes never raises on data.
create or replace function event_store_private.moves_fault(
  v_moves jsonb
)
returns text
language sql
stable
set search_path = event_store, pg_temp
as $$
  select case
    when v_moves is null or jsonb_typeof(v_moves) <> 'array' then 'v_moves is no list of moves'
    when octet_length(v_moves::text) > 65536 then format('v_moves has %s bytes as text', octet_length(v_moves::text))
    when jsonb_array_length(v_moves) > 100 then format('v_moves has %s moves', jsonb_array_length(v_moves))
    -- no move may bring into data what data may not have
    when event_store_private.data_fault(v_moves) is not null then 'of v_moves: ' || event_store_private.data_fault(v_moves)
    else (
      select format('/%s%s', m.ordinal - 1, f.fault)
      from jsonb_array_elements(v_moves) with ordinality m(move, ordinal)
      left join (
        values
          ('rename', '{move,path,to}'::text[]), ('default', '{move,path,value}'), ('drop', '{move,path}'),
          ('cast', '{move,path,type}'), ('values', '{move,path,values}'), ('scale', '{move,path,power}')
      ) k(kind, keys) on m.move -> 'move' = to_jsonb(k.kind)
      cross join lateral (
        select case
          when jsonb_typeof(m.move) <> 'object' then ' is no object'
          when not m.move ? 'move' then '/move is missing'
          when k.kind is null then format('/move is %s, which is no move', left((m.move -> 'move')::text, 100))
          when not m.move ?& k.keys then (
            select format('/%s is missing', n.key) from unnest(k.keys) n(key) where not m.move ? n.key limit 1
          )
          when m.move - k.keys <> '{}' then (
            select format('/%s is no key of %s', left(replace(replace(n.key, '~', '~0'), '/', '~1'), 100), k.kind)
            from jsonb_object_keys(m.move - k.keys) n(key) limit 1
          )
          when not event_store_private.is_move_path(m.move -> 'path') then '/path is no list of 1 to 32 keys'
          when k.kind = 'rename' then case
            when not event_store_private.is_move_path(m.move -> 'to') then '/to is no list of 1 to 32 keys'
            when not exists (
              select from jsonb_array_elements(m.move -> 'path') with ordinality p(key, n)
              where p.key is distinct from m.move -> 'to' -> (p.n - 1)::int
            ) then '/to lies within the path'
          end
          when k.kind = 'cast' and m.move -> 'type' not in ('"string"', '"number"', '"integer"', '"boolean"')
            then format('/type is %s', left((m.move -> 'type')::text, 100))
          when k.kind = 'values' and (
            jsonb_typeof(m.move -> 'values') <> 'object' or m.move -> 'values' = '{}'
            or jsonb_path_exists(m.move -> 'values', 'strict $.* ? (@.type() == "object" || @.type() == "array")')
          ) then '/values is no object of texts, numbers, booleans and nulls'
          when k.kind = 'scale' and (
            jsonb_typeof(m.move -> 'power') <> 'number' or m.move ->> 'power' !~ '^-?([1-9]|1[0-8])$'
          ) then format('/power is %s', left((m.move -> 'power')::text, 100))
        end
      ) f(fault)
      where f.fault is not null
      order by m.ordinal
      limit 1
    )
  end
$$;

comment on function event_store_private.moves_fault(jsonb) is
'What is wrong with the moves of an upcast, with a JSON pointer; null if nothing.';
