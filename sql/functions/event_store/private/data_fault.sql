-- Postgres takes more as JSON than readers do: a number of a few bytes may be a text of 100,000 digits, and a parser
-- stops at some depth. So the limits are on the text that readers get: 1 MiB, 200 levels of nesting (the innermost
-- value is one), 900 digits in a number. `event_store.max_data_bytes` may lower the first limit for a session; nothing
-- raises it.
--
-- event_fault calls this unless it sees that data are small.
create or replace function event_store_private.data_fault(
  v_data jsonb
)
returns text
language plpgsql
stable
-- no search_path of its own, which would cost every event of some size: it uses only built-ins
as $$
declare
  _most constant int := 1048576;
  _allowed constant int := least(_most, nullif(current_setting('event_store.max_data_bytes', true), '')::int);
  _text text;
begin
  -- with at least eight bytes a number, these few bytes are no text of 1 GB
  if pg_column_size(v_data) <= 32768 and pg_column_compression(v_data) is null then
    _text := v_data::text;
  -- no JSON value takes eight times as many bytes in memory as in its text
  elsif pg_column_size(v_data) <= 8 * _most then
    begin
      _text := v_data::text;
    exception when program_limit_exceeded or out_of_memory then
      null;
    end;
  end if;
  if _text is null or octet_length(_text) > _allowed then
    return format(
      'data has %s bytes as text; %s',
      coalesce(octet_length(_text)::text, 'far too many'),
      case when _allowed < _most then format('event_store.max_data_bytes allows %s', _allowed) else format('at most %s are allowed', _most) end
    );
  elsif octet_length(_text) > 400 and jsonb_path_exists(v_data, 'strict $.**{200}') then
    return 'data is nested deeper than the 200 levels that are allowed';
  -- a number with more digits has 450 of them in a row, and so 200, which other data rarely have
  elsif octet_length(_text) > 900 and _text ~ '[0-9]{200}' then
    return (
      select format('data has a number of %s digits; at most 900 are allowed', max(d.digits))
      from jsonb_path_query(v_data, 'strict $.** ? (@.type() == "number")') n(number)
      cross join lateral (select length(translate(n.number::text, '-.', '')) as digits) d
      having max(d.digits) > 900
    );
  end if;
  return null;
end
$$;

comment on function event_store_private.data_fault(jsonb) is
'What makes data unfit to be stored, as a sentence; null if nothing.';
