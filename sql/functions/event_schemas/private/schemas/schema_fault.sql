-- A fault is a keyword that is not accepted, or one with a value that JSON Schema does not allow. Schemas within a
-- keyword are checked when they are compiled.
create or replace function event_store_private.schema_fault(
  v_schema jsonb,
  v_pointer text
)
returns text
language sql
immutable
set search_path = event_store, pg_temp
as $$
  select case
    when jsonb_typeof(v_schema) = 'boolean' then null
    when jsonb_typeof(v_schema) <> 'object' then format('%s is no schema', coalesce(nullif(v_pointer, ''), 'the whole'))
    else (
      select format('%s at %s %s', k.key, v_pointer || '/' || k.key, k.fault)
      from (
        select e.key, case
          when e.key = 'x-personal' then case
            when jsonb_typeof(e.value) <> 'object' or e.value - '{of,kind}'::text[] <> '{}'
              or coalesce(e.value ->> 'of', '') = '' or coalesce(e.value ->> 'kind', '') = ''
              or jsonb_path_exists(e.value, 'strict $.* ? (@.type() != "string")')
              then 'is no object of "of", the field with the person''s id, and "kind"'
          end
          when e.key in (
            'title', 'description', 'default', 'examples', 'deprecated', 'readOnly', 'writeOnly', '$comment', '$schema',
            '$defs', 'definitions', 'discriminator'
          ) or e.key = '$id' and v_pointer = '' or e.key like 'x-%' or e.key = 'uniqueItems' and e.value = 'false' then null
          when e.key = 'type' then case
            when e.value = '[]' or exists (
              select
              from jsonb_array_elements(case jsonb_typeof(e.value) when 'array' then e.value else jsonb_build_array(e.value) end) t(type)
              where t.type not in ('"null"', '"boolean"', '"number"', '"integer"', '"string"', '"array"', '"object"')
            ) then 'names no type'
          end
          when e.key in ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf') then case
            when jsonb_typeof(e.value) <> 'number' then 'is no number'
            when e.key = 'multipleOf' and e.value <= '0' then 'is not above 0'
          end
          when e.key in ('minLength', 'maxLength', 'minItems', 'maxItems') then case
            when jsonb_typeof(e.value) <> 'number' then 'is no number'
            when e.value::numeric not between 0 and 2147483647 or e.value::numeric % 1 <> 0 then 'is no count'
            when e.key in ('minLength', 'maxLength') and e.value::numeric > 1000 then
              'is above 1000: counting that many characters takes too long'
          end
          when e.key = 'pattern' then case
            when jsonb_typeof(e.value) <> 'string' then 'is no text'
            -- compiling a pattern of 60,000 characters takes minutes
            when char_length(e.value #>> '{}') > 1000 then 'has more than 1000 characters'
            when event_store_private.schema_pattern(e.value #>> '{}') is null then 'has something that Postgres reads otherwise'
          end
          when e.key = 'format' then case
            when event_store_private.format_pattern(e.value #>> '{}') is null then
              format('is %s; date, date-time and uuid are taken', e.value)
          end
          when e.key in ('enum', 'const') then case
            when e.key = 'enum' and (jsonb_typeof(e.value) <> 'array' or e.value = '[]') then 'is no list of values'
            when exists (
              select from jsonb_array_elements(case e.key when 'enum' then e.value else jsonb_build_array(e.value) end) n(value)
              where jsonb_typeof(n.value) in ('array', 'object')
            ) then 'has an array or an object'
          end
          when e.key = 'required' then case
            when jsonb_typeof(e.value) <> 'array' or jsonb_path_exists(e.value, 'strict $[*] ? (@.type() != "string")')
              then 'is no list of names'
          end
          when e.key = 'properties' then case when jsonb_typeof(e.value) <> 'object' then 'is no object' end
          when e.key in ('anyOf', 'allOf', 'oneOf') then case
            when jsonb_typeof(e.value) <> 'array' or e.value = '[]' then 'is no list of schemas'
          end
          when e.key = '$ref' then case when jsonb_typeof(e.value) <> 'string' then 'is no text' end
          when e.key in ('items', 'additionalProperties', 'not') then null
          else 'is not taken'
        end as fault
        from jsonb_each(case when jsonb_typeof(v_schema) = 'object' then v_schema else '{}' end) e
      ) k
      where k.fault is not null
      order by k.key
      limit 1
    )
  end
$$;

comment on function event_store_private.schema_fault(jsonb, text) is
'What is wrong with a schema''s own keywords, as a sentence with the JSON pointer; null if nothing.';
