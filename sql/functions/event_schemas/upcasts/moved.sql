-- A move never raises: where it does not apply, data stay as they are. Paths lead only through objects, from the root.
-- Every path and every target is walked key by key: #> and jsonb_set would enter arrays.
-- Races: none; it reads its arguments only.
-- Example: select moved('{"a": 1}', 1, '[{"to_version": 2, "moves": [{"move": "drop", "path": ["a"]}]}]')
create or replace function event_store_platform.moved(
  v_data jsonb,
  v_event_version bigint,
  v_upcasts jsonb
)
returns jsonb
language plpgsql
immutable
strict
parallel safe
-- no search_path of its own, which would cost each event of a rebuild as much as a move: it uses only built-ins
as $$
declare
  _data jsonb := v_data;
  _version bigint := v_event_version;
  _to_version bigint;
  _moves jsonb;
  _move jsonb;
  _kind text;
  _keys jsonb;
  _path text[];
  _target text[];
  _value jsonb;
  _at jsonb;
begin
  if jsonb_typeof(_data) <> 'object' then
    return _data;
  end if;
  for _u in 0 .. case jsonb_typeof(v_upcasts) when 'array' then jsonb_array_length(v_upcasts) - 1 else 0 end loop
    if (
      jsonb_typeof(v_upcasts -> _u -> 'to_version') = 'number' and jsonb_typeof(v_upcasts -> _u -> 'moves') = 'array'
    ) is not true then
      -- raised here, since callers may call no private function
      raise exception 'request is malformed'
        using
          errcode = 'MR005',
          detail = format('v_upcasts is %s', left(v_upcasts::text, 200)),
          hint = 'v_upcasts is an array of {"to_version": number, "moves": array}.';
    end if;
    _to_version := v_upcasts -> _u -> 'to_version';
    continue when _to_version <= v_event_version;
    if _to_version < _version then
      return event_store_platform.moved(
        v_data, v_event_version,
        (
          select jsonb_agg(u.upcast order by (u.upcast -> 'to_version')::bigint)
          from jsonb_array_elements(v_upcasts) u(upcast)
        )
      );
    end if;
    _version := _to_version;
    _moves := v_upcasts -> _u -> 'moves';
    for _m in 0 .. jsonb_array_length(_moves) - 1 loop
      _move := _moves -> _m;
      _kind := _move ->> 'move';
      _keys := _move -> 'path';
      _path := array[_keys ->> 0];
      _value := _data -> (_keys ->> 0); -- null where there is no value, but not for a JSON null
      for _k in 1 .. jsonb_array_length(_keys) - 1 loop
        _path := _path || (_keys ->> _k);
        _value := case when jsonb_typeof(_value) = 'object' then _value -> (_keys ->> _k) end;
      end loop;
      if _kind = 'default' then
        continue when _value is not null;
        _value := _move -> 'value';
      elsif _value is null then
        continue;
      elsif _kind = 'drop' then
        _data := _data #- _path;
        continue;
      elsif _kind = 'rename' then
        _keys := _move -> 'to';
      else
        _value := event_store_platform.moved_value(_value, _move);
        continue when _value is null;
        _data := jsonb_set(_data, _path, _value);
        continue;
      end if;
      -- a renamed value, or a default, goes to _keys
      _target := array[_keys ->> 0];
      _at := _data -> (_keys ->> 0);
      for _k in 1 .. jsonb_array_length(_keys) - 1 loop
        if _at is null then
          for _missing in reverse jsonb_array_length(_keys) - 1 .. _k loop
            _value := jsonb_build_object(_keys ->> _missing, _value);
          end loop;
          exit;
        elsif jsonb_typeof(_at) <> 'object' then
          _value := null;
          exit;
        end if;
        _target := _target || (_keys ->> _k);
        _at := _at -> (_keys ->> _k);
      end loop;
      continue when _value is null;
      if _kind = 'rename' then
        _data := _data #- _path;
      end if;
      _data := jsonb_set(_data, _target, _value);
    end loop;
  end loop;
  return _data;
end
$$;

comment on function event_store_platform.moved(jsonb, bigint, jsonb) is
'Returns data of an event''s version v_event_version in the shape of the last of v_upcasts, which are entries of to_version '
'and moves as event_upcasts has them. Upcasts to v_event_version or lower are left out. Null if an argument is null. '
'MR005 v_upcasts is no array of these.';
revoke all on function event_store_platform.moved(jsonb, bigint, jsonb) from public;
grant execute on function event_store_platform.moved(jsonb, bigint, jsonb)
to event_store_consumer, event_store_reader, event_store_owner;
