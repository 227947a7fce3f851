-- Once a key is gone, a program that sends the same event again cannot seal its values as before.
create or replace function event_store_private.without_forgotten(
  v_data jsonb
)
returns jsonb
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _key text;
  _text text;
begin
  if not jsonb_path_exists(v_data, '$.**."$sealed"') then
    return v_data;
  end if;
  _text := v_data::text;
  for _key in
    select k.key_id
    from event_store_keys.subject_keys k
    where k.forgotten_at is not null and k.key_id in (
      select split_part(p.value #>> '{}', '.', 2) from jsonb_path_query(v_data, '$.**."$sealed"') p(value)
    )
  loop
    _text := regexp_replace(_text, '("[$]sealed": "1[.]' || _key || ')[.][^"]*"', E'\\1.0.0"', 'g');
  end loop;
  return _text::jsonb;
end
$$;

comment on function event_store_private.without_forgotten(jsonb) is
'Data in which each value that a forgotten key sealed holds nothing: what two sendings of an event have in common.';
