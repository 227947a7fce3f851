-- A pattern is one of ECMA 262. Postgres may read these differently: look-around, references, \b, \p, \u, named groups,
-- classes within classes, and counts above 255, its limit. \d, \w and \s mean what they mean in ECMA 262, whatever the
-- database's locale.
create or replace function event_store_private.schema_pattern(
  v_pattern text
)
returns text
language plpgsql
immutable
strict
set search_path = event_store, pg_temp
set standard_conforming_strings = on -- a session with it off reads each backslash here as an escape
as $$
declare
  _space constant text := ' \t\n\r\f\v' || U&'\00A0\1680\2000-\200A\2028\2029\202F\205F\3000\FEFF';
  _rest text := v_pattern;
  _in_class boolean := false;
  _after_set boolean := false; -- after \d, \w, \s in a class: a - that follows is no range
  _token text;
  _set text;
  _made text := '';
begin
  while _rest <> '' loop
    _token := substring(_rest from case
      when _in_class then '^(?:\\.|.)' else '^(?:\\.|\(\?:|\[\^?|\{[0-9]+(?:,[0-9]*)?\}|.)' end);
    _rest := substr(_rest, char_length(_token) + 1);
    if _token ~ '^\\[dws]$' or not _in_class and _token ~ '^\\[DWS]$' then
      _set := case lower(_token) when '\d' then '0-9' when '\w' then 'A-Za-z0-9_' else _space end;
      if not _in_class then
        _made := _made || case when _token = lower(_token) then '[' else '[^' end || _set || ']';
      elsif _made ~ '[^[]-$' and _made !~ '\[\^-$' then
        return null; -- a range up to a set
      else
        _made := _made || _set;
      end if;
      _after_set := true;
      continue;
    elsif _token ~ '^\\' then
      if _token !~ '^\\[]tnrfv^$.*+?(){}|/\\[-]$' then
        return null;
      end if;
      _made := _made || _token;
    elsif _in_class then
      if _token = '[' then
        _made := _made || '\[';
      elsif _token = '-' and _after_set and _rest !~ '^\]' then
        _made := _made || '\-';
      else
        _made := _made || _token;
        _in_class := _token <> ']';
      end if;
    elsif _token ~ '^\[' then
      if _rest ~ '^\]' then
        return null; -- ECMA 262 has an empty class, Postgres one with ]
      end if;
      _made := _made || _token;
      _in_class := true;
    elsif _token = '{' or _token = '(' and _rest ~ '^\?'
      or _token ~ '^\{' and (select max(n::numeric) from unnest(regexp_split_to_array(_token, '[^0-9]+')) n where n <> '') > 255
    then
      return null;
    else
      _made := _made || _token;
    end if;
    _after_set := false;
  end loop;
  begin
    -- in a group, since the beginning of a Postgres pattern may set options
    _made := '(?:' || _made || ')';
    perform format('strict $ like_regex %s', to_json(_made))::jsonpath;
  exception when invalid_regular_expression then
    return null;
  end;
  return _made;
end
$$;

comment on function event_store_private.schema_pattern(text) is
'A pattern of JSON Schema as Postgres reads it; null where Postgres may read it differently.';
