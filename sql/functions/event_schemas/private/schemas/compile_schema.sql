-- The predicate is a jsonpath that the value at v_at meets or not. The rules, one by one, tell which rule it does not
-- meet.
--
-- A predicate is strict: in lax mode comparisons and filters look into arrays, and [5] would pass for a number. In
-- strict mode a step to a missing key is an error, which (exists(step)) is unknown tests. A predicate is true or false
-- and never unknown, since "not" of unknown is unknown too: a test that fits one type only comes after the test of the
-- type. Without a predicate (null) every value is fit.
--
-- Where nothing negates it (v_positive), it may be unknown in place of false, and implied tests are left out: that a
-- value is there, or has a type, where another test of the value is unknown without that. That halves most schemas.
--
-- v_root is the whole schema, v_at the expression of the value, v_path its keys below the value that `@` is, v_pointer
-- the place of v_schema in v_root, v_within the pointers of the schemas around it.
create or replace function event_store_private.compile_schema(
  v_schema jsonb,
  v_root jsonb default null,
  v_at text default '@',
  v_path text[] default '{}',
  v_pointer text default '',
  v_within text[] default '{}',
  v_positive boolean default true,
  out predicate text,
  out checks jsonb,
  out schemas int
)
returns record
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
declare
  _fault text := event_store_private.schema_fault(v_schema, v_pointer);
  _type constant text := v_schema ->> 'type';
  _kind constant text := case _type when 'integer' then 'number' else _type end; -- as jsonpath names it
  _root constant jsonb := coalesce(v_root, v_schema);
  _within constant text[] := v_within || v_pointer;
  _all text[] := '{}';
  _target text;
  _at text;
  _names text;
  _each record;
  _sub record;
  _subs text[];
  _size int := 0; -- of the predicates of its parts, in bytes
begin
  checks := '[]';
  schemas := 1;
  if _fault is null and cardinality(_within) > 32 then
    _fault := format('%s is nested in more than 32 schemas', v_pointer);
  end if;
  if _fault is not null then
    perform event_store_private.refuse_schema(_fault);
  elsif v_schema = 'false' then
    predicate := '1 == 2';
    checks := jsonb_build_array(
      jsonb_build_object('pointer', v_pointer, 'at', v_path, 'says', 'which is not allowed', 'path', predicate)
    );
    return;
  elsif v_schema = 'true' then
    return;
  elsif v_schema ? 'x-personal' then
    -- its other rules are of the value that is sealed, which the store does not see, unless it is null
    _sub := event_store_private.compile_schema(v_schema - 'x-personal', _root, '@', v_path, v_pointer, v_within, false);
    schemas := _sub.schemas;
    predicate := format(
      '%1$s(%2$s.type() == "object" && !((exists(%2$s."$sealed")) is unknown) && %2$s."$sealed".type() == "string"'
      ' && %2$s."$sealed" like_regex %3$s && !exists(%2$s.keyvalue() ? (@.key != "$sealed")))',
      case
        when _sub.predicate is null or 'null' @@ format('strict exists($ ? (%s))', _sub.predicate)::jsonpath
          then format('%s == null || ', v_at)
      end, v_at,
      -- 1.<key_id>.<nonce>.<ciphertext> as base64url; of a forgotten person the last two are 0
      to_jsonb('^1[.][A-Za-z0-9_-]{22}[.](?:[A-Za-z0-9_-]{22}[.][A-Za-z0-9_-]+|0[.]0)$'::text)
    );
    checks := jsonb_build_array(jsonb_build_object(
      'pointer', v_pointer || '/x-personal', 'at', v_path, 'says', 'which is personal and not sealed', 'path', predicate
    ));
    return;
  end if;

  -- the tests of the value by itself
  for _each in
    select
      r.keyword || coalesce('/' || r.item, '') as pointer, r.says,
      case
        when r.of is null or r.of = _kind then r.test
        else format('(%s.type() != "%s" || %s)', v_at, r.of, r.test)
      end as test,
      -- whether it is left out of the predicate
      v_positive and case r.keyword
        when 'type' then
          _type in ('number', 'string') and bool_or(r.of = _kind) over ()
          or _type = 'object' and exists (
            select from jsonb_array_elements_text(v_schema -> 'required') q(name)
            where v_schema #> array['properties', q.name, 'type'] is not null
          )
        when 'required' then
          _type = 'object' and v_schema #> array['properties', v_schema -> 'required' ->> r.item::int, 'type'] is not null
      end is true as implied
    from (
      select
        'type', null, null,
        'not ' || string_agg(case t.type when 'null' then t.type else 'of type ' || t.type end, ' or ' order by t.ordinal),
        '(' || string_agg(
          case t.type
            when 'integer' then
              format(case when v_positive and _kind = 'number' then '' else '%1$s.type() == "number" && ' end || '%1$s %% 1 == 0', v_at)
            else format('%s.type() == "%s"', v_at, t.type)
          end, ') || (' order by t.ordinal
        ) || ')'
      from jsonb_array_elements_text(
        case jsonb_typeof(v_schema -> 'type')
          when 'string' then jsonb_build_array(v_schema -> 'type')
          else coalesce(v_schema -> 'type', '[]')
        end
      ) with ordinality t(type, ordinal)
      union all
      select
        e.keyword, null, null, left(e.says || string_agg(e.value::text, ', ' order by e.ordinal), 200),
        string_agg(
          case jsonb_typeof(e.value)
            when 'null' then format('%s == null', v_at)
            else format('(%1$s.type() == "%2$s" && %1$s == %3$s)', v_at, jsonb_typeof(e.value), e.value)
          end, ' || ' order by e.ordinal
        )
      from (
        select 'enum' as keyword, 'none of ' as says, n.value, n.ordinal
        from jsonb_array_elements(coalesce(v_schema -> 'enum', '[]')) with ordinality n(value, ordinal)
        union all
        select 'const', 'not ', v_schema -> 'const', 1 where v_schema ? 'const'
      ) e
      group by e.keyword, e.says
      union all
      select n.keyword, null, 'number', n.says || (v_schema ->> n.keyword), format(n.test, v_at, v_schema ->> n.keyword)
      from (
        values
          ('minimum', 'less than ', '%s >= %s'),
          ('maximum', 'more than ', '%s <= %s'),
          ('exclusiveMinimum', 'not more than ', '%s > %s'),
          ('exclusiveMaximum', 'not less than ', '%s < %s'),
          ('multipleOf', 'no multiple of ', '%s %% %s == 0')
      ) n(keyword, says, test)
      where v_schema ? n.keyword
      union all
      -- for .{n} with flag s, n up to 255, Postgres compares lengths and does not search
      select
        'minLength', null, 'string', format('shorter than %s characters', n.n),
        format(
          case when n.n > 255 then '%1$s like_regex ".{255}" flag "s" && ' else '' end || '%1$s like_regex "%2$s" flag "s"',
          v_at, n.any
        )
      from (
        select n, repeat('.{255}', (n - 1) / 255) || format('.{%s}', (n - 1) % 255 + 1) as any
        from cast(v_schema ->> 'minLength' as numeric) m cross join cast(m as int) n
      ) n
      where n.n > 0
      union all
      select
        'maxLength', null, 'string', format('longer than %s characters', n.n),
        format(
          case when n.n > 254 then '(!(%1$s like_regex ".{255}" flag "s") || !(%1$s like_regex "^%2$s" flag "s"))'
            else '!(%1$s like_regex "%2$s" flag "s")' end, v_at, n.any
        )
      from (
        select n, repeat('.{255}', n / 255) || format('.{%s}', n % 255 + 1) as any
        from cast(v_schema ->> 'maxLength' as numeric) m cross join cast(m as int) n
      ) n
      where n.n is not null
      union all
      select
        p.keyword, null, 'string', p.says,
        format('%s like_regex %s', v_at, to_jsonb(p.pattern))
      from (
        values
          ('pattern', 'not like ' || (v_schema -> 'pattern')::text, event_store_private.schema_pattern(v_schema ->> 'pattern')),
          ('format', 'no ' || (v_schema ->> 'format'), event_store_private.format_pattern(v_schema ->> 'format'))
      ) p(keyword, says, pattern)
      where p.pattern is not null
      union all
      select i.keyword, null, 'array', format(i.says, v_schema ->> i.keyword), format(i.test, v_at, v_schema ->> i.keyword)
      from (
        values
          ('minItems', 'of fewer than %s items', '%s.size() >= %s'),
          ('maxItems', 'of more than %s items', '%s.size() <= %s')
      ) i(keyword, says, test)
      where v_schema ? i.keyword
      union all
      select
        'required', (q.ordinal - 1)::text, 'object', 'without ' || q.name::text,
        format('!((exists(%s.%s)) is unknown)', v_at, q.name)
      from jsonb_array_elements(coalesce(v_schema -> 'required', '[]')) with ordinality q(name, ordinal)
    ) r(keyword, item, of, says, test)
    where r.test is not null
  loop
    if not _each.implied then
      _all := _all || _each.test;
    end if;
    checks := checks || jsonb_build_object(
      'pointer', v_pointer || '/' || _each.pointer, 'at', v_path, 'says', _each.says, 'path', _each.test
    );
  end loop;

  -- the tests of its parts, and the other schemas that it must meet
  for _each in
    select 'properties/' || replace(replace(p.key, '~', '~0'), '/', '~1') as pointer, p.key, p.value as schema
    from jsonb_each(coalesce(v_schema -> 'properties', '{}')) p
    union all
    select 'allOf/' || (a.ordinal - 1), null, a.value
    from jsonb_array_elements(coalesce(v_schema -> 'allOf', '[]')) with ordinality a(value, ordinal)
  loop
    _at := v_at || coalesce('.' || to_jsonb(_each.key)::text, '');
    _sub := event_store_private.compile_schema(
      _each.schema, _root, _at, v_path || _each.key, v_pointer || '/' || _each.pointer, _within, v_positive
    );
    schemas := schemas + _sub.schemas;
    continue when _sub.predicate is null;
    _size := _size + octet_length(_sub.predicate);
    -- checked here, too: together the parts may be many times what is allowed
    if schemas > 1000 or _size > 100000 then
      perform event_store_private.refuse_schema(format('the schema is too large, with what it refers to, at %s', v_pointer));
    end if;
    if _each.key is null or _type = 'object' and v_schema -> 'required' ? _each.key then
      _all := _all || format('(%s)', _sub.predicate);
      checks := checks || _sub.checks;
    else
      -- a missing part is fit, and so is each part of a value that is no object
      _all := _all || format('((exists(%s)) is unknown || (%s))', _at, _sub.predicate);
      checks := checks || (
        select jsonb_agg(
          c.value || jsonb_build_object('path', format('((exists(%s)) is unknown || (%s))', _at, c.value ->> 'path'))
          order by c.ordinal
        )
        from jsonb_array_elements(_sub.checks) with ordinality c(value, ordinal)
      );
    end if;
  end loop;
  if v_schema ? '$ref' then
    _target := substr(v_schema ->> '$ref', 2);
    if v_schema ->> '$ref' !~ '^#(?:/[^%]*)?$' or _root #> event_store_private.pointer_path(_target) is null then
      perform event_store_private.refuse_schema(
        format('$ref at %s/$ref names nothing of the schema: %s', v_pointer, v_schema -> '$ref')
      );
    elsif _target = any (_within) then
      perform event_store_private.refuse_schema(
        format('$ref at %s/$ref refers to a schema that it is in: %s', v_pointer, v_schema -> '$ref')
      );
    end if;
    _sub := event_store_private.compile_schema(
      _root #> event_store_private.pointer_path(_target), _root, v_at, v_path, _target, _within, v_positive
    );
    schemas := schemas + _sub.schemas;
    if _sub.predicate is not null then
      _all := _all || format('(%s)', _sub.predicate);
      checks := checks || _sub.checks;
    end if;
  end if;

  if v_schema ? 'items' then
    _sub := event_store_private.compile_schema(v_schema -> 'items', _root, '@', '{}', v_pointer || '/items', _within, false);
    schemas := schemas + _sub.schemas;
    if _sub.predicate is not null then
      _all := _all || format('(%1$s.type() != "array" || !exists(%1$s[*] ? (!(%2$s))))', v_at, _sub.predicate);
      checks := checks || jsonb_build_object(
        'pointer', v_pointer || '/items', 'at', v_path, 'says', 'with an unfit item', 'path', _all[cardinality(_all)],
        'items', _sub.checks
      );
    end if;
  end if;
  if v_schema ? 'additionalProperties' then
    _sub := event_store_private.compile_schema(
      v_schema -> 'additionalProperties', _root, '@.value', '{}', v_pointer || '/additionalProperties', _within, false
    );
    schemas := schemas + _sub.schemas;
    if _sub.predicate is not null then
      select coalesce(string_agg(format('@.key != %s && ', to_jsonb(k.key)), ''), '') into _names
      from jsonb_object_keys(coalesce(v_schema -> 'properties', '{}')) k(key);
      _all := _all || format(
        '(%1$s.type() != "object" || !exists(%1$s.keyvalue() ? (%2$s!(%3$s))))', v_at, _names, _sub.predicate
      );
      checks := checks || jsonb_build_object(
        'pointer', v_pointer || '/additionalProperties', 'at', v_path,
        'says', 'with a key that is not among the properties, or whose value is unfit', 'path', _all[cardinality(_all)]
      );
    end if;
  end if;
  for _each in
    select
      k.keyword, k.says,
      case k.keyword when 'not' then jsonb_build_array(v_schema -> 'not') else v_schema -> k.keyword end as members
    from (
      values
        ('anyOf', 'unfit for each schema of anyOf'),
        ('oneOf', 'not fit for exactly one schema of oneOf'),
        ('not', 'fit for the schema of not')
    ) k(keyword, says)
    where v_schema ? k.keyword
  loop
    _subs := '{}';
    for _sub in
      select c.predicate, c.schemas
      from jsonb_array_elements(_each.members) with ordinality m(schema, ordinal)
      cross join lateral event_store_private.compile_schema(
        m.schema, _root, v_at, v_path,
        v_pointer || '/' || _each.keyword || case when _each.keyword <> 'not' then '/' || (m.ordinal - 1) else '' end, _within,
        v_positive and _each.keyword = 'anyOf'
      ) c
      order by m.ordinal
    loop
      schemas := schemas + _sub.schemas;
      _subs := _subs || format('(%s)', coalesce(_sub.predicate, '1 == 1'));
      _size := _size + octet_length(_subs[cardinality(_subs)]);
      -- checked before it is written: oneOf writes each of n predicates n times
      if schemas > 1000 or _size > 100000 or _each.keyword = 'oneOf' and _size > 100000 / cardinality(_subs) then
        perform event_store_private.refuse_schema(format('the schema is too large, with what it refers to, at %s', v_pointer));
      end if;
    end loop;
    _all := _all || case _each.keyword
      when 'not' then '!' || _subs[1]
      when 'anyOf' then format('(%s)', array_to_string(_subs, ' || '))
      else (
        select '(' || string_agg(one.is_met, ' || ') || ')'
        from (
          select
            '(' || string_agg(case when i.n = j.n then '' else '!' end || _subs[j.n], ' && ' order by i.n <> j.n, j.n) || ')'
            as is_met
          from generate_subscripts(_subs, 1) i(n) cross join generate_subscripts(_subs, 1) j(n)
          group by i.n
        ) one
      )
    end;
    checks := checks || jsonb_build_object(
      'pointer', v_pointer || '/' || _each.keyword, 'at', v_path, 'says', _each.says, 'path', _all[cardinality(_all)]
    );
  end loop;
  select string_agg(format('(%s)', a.test), ' && ' order by a.ordinal) into predicate
  from unnest(_all) with ordinality a(test, ordinal);
  if schemas > 1000 or octet_length(predicate) > 100000 then
    perform event_store_private.refuse_schema(format('the schema is too large, with what it refers to, at %s', v_pointer));
  end if;
end
$$;

comment on function event_store_private.compile_schema(jsonb, jsonb, text, text[], text, text[], boolean) is
'The predicate of a JSON Schema, and its rules as a JSON array of {pointer, at, says, path}, and items for those of an '
'array''s items. MR005 a keyword is not accepted.';
