-- Says it in a sentence, with the value where v_quotes. v_checks comes from compile_schema; v_field is the name of the data.
create or replace function event_store_private.data_violation(
  v_checks jsonb,
  v_data jsonb,
  v_field text default 'data',
  v_quotes boolean default true,
  out fault text,
  out pointer text
)
returns record
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _check jsonb;
  _value jsonb;
  _field text;
  _each record;
begin
  select c.value into _check
  from jsonb_array_elements(v_checks) with ordinality c(value, ordinal)
  where (v_data @@ format('strict exists($ ? (%s))', c.value ->> 'path')::jsonpath) is not true
  order by c.ordinal
  limit 1;
  if not found then
    return;
  end if;
  _value := v_data #> array(select jsonb_array_elements_text(_check -> 'at'));
  _field := v_field || (
    select coalesce(string_agg('.' || k.key, '' order by k.ordinal), '')
    from jsonb_array_elements_text(_check -> 'at') with ordinality k(key, ordinal)
  );
  if _check ? 'items' then
    for _each in select * from jsonb_array_elements(_value) with ordinality i(item, ordinal) loop
      select v.* into fault, pointer
      from event_store_private.data_violation(_check -> 'items', _each.item, format('%s[%s]', _field, _each.ordinal - 1), v_quotes) v;
      if fault is not null then
        return;
      end if;
    end loop;
  end if;
  fault := format(
    '%s is %s%s, %s', _field, case when v_quotes then left(_value::text, 100) else 'not shown' end,
    case when v_quotes and length(_value::text) > 100 then '…' end, _check ->> 'says'
  );
  pointer := _check ->> 'pointer';
end
$$;

comment on function event_store_private.data_violation(jsonb, jsonb, text, boolean) is
'The first rule of a schema that data do not meet, and where it stands; nulls where they meet all.';
