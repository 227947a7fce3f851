-- Where the move does not apply, the value stays.
create or replace function event_store_platform.moved_value(
  v_value jsonb,
  v_move jsonb
)
returns jsonb
language plpgsql
immutable
strict
parallel safe
-- no search_path of its own, for the reason in moved
as $$
declare
  _is constant text := jsonb_typeof(v_value);
  _text constant text := v_value #>> '{}';
begin
  return case
    when _is in ('object', 'array', 'null') then null
    when v_move ->> 'move' = 'values' then case when _is = 'string' then v_move -> 'values' -> _text end
    -- numbers of events are no longer, and numeric holds longer ones: the result is exact, and this never fails
    when v_move ->> 'move' = 'scale' then case
      when _is = 'number' and octet_length(_text) <= 1000 then
        to_jsonb(trim_scale(_text::numeric * ('1e' || (v_move ->> 'power'))::numeric))
    end
    when v_move ->> 'type' = 'string' then case when _is <> 'string' then to_jsonb(_text) end
    when v_move ->> 'type' = 'boolean' then case
      when _is = 'string' and _text in ('true', 'false') then _text::jsonb
    end
    when _is = 'number' then case
      when v_move ->> 'type' = 'integer' and _text::numeric = trunc(_text::numeric) then
        to_jsonb(trim_scale(_text::numeric))
    end
    -- lengths by octet_length, as counts in a pattern are slow
    when _is = 'string' and octet_length(_text) <= 202 and _text ~ '^-?(0|[1-9][0-9]*)([.][0-9]+)?$'
      and octet_length(split_part(ltrim(_text, '-'), '.', 1)) <= 100 and octet_length(split_part(_text, '.', 2)) <= 100
    then case
      when v_move ->> 'type' = 'number' then to_jsonb(_text::numeric)
      when _text::numeric = trunc(_text::numeric) then to_jsonb(trim_scale(_text::numeric))
    end
  end;
end
$$;

comment on function event_store_platform.moved_value(jsonb, jsonb) is
'Returns the value that a move of the kind cast, values or scale makes of v_value. Null where it changes nothing.';
revoke all on function event_store_platform.moved_value(jsonb, jsonb) from public;
grant execute on function event_store_platform.moved_value(jsonb, jsonb)
to event_store_consumer, event_store_reader, event_store_owner;
