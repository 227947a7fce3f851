-- A title stands in for a missing description. A version has its schema until an operator withdraws it; repeating the
-- same one waits for no other session. A captured table's decider has none: its source says what its events have.
-- Stored events are not judged, also when appended again. An append that began before may store data that do not fit.
-- Example: select * from register_event_schema('order', 'order_placed', '{"type": "object", "required": ["amount"]}')
create or replace function event_store.register_event_schema(
  v_decider text,
  v_event text,
  v_schema jsonb,
  v_event_version bigint default 1
)
returns table (
  decider text,
  event text,
  event_version bigint,
  digest text
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _digest constant text := encode(sha256(convert_to(v_schema::text, 'UTF8')), 'hex');
  _known text;
  _compiled record;
  _patterns bigint;
  _newer bigint;
  _unreadable text;
begin
  if v_schema is null or octet_length(v_schema::text) > 65536 then
    perform event_store_private.refuse_request(
      format('v_schema has %s bytes as text', coalesce(octet_length(v_schema::text)::text, 'no')),
      'A schema has at most 65536 bytes.'
    );
  end if;
  -- the rights and the names
  perform event_store.register_decider_event(
    v_decider, v_event, left(coalesce(v_schema ->> 'description', v_schema ->> 'title', ''), 2500), v_event_version
  );
  for _attempt in 1..2 loop -- before and after other sessions are locked out
    if exists (select from event_store.captured_tables c where c.decider = v_decider) then
      perform event_store_private.refuse_captured_decider(v_decider);
    end if;
    select s.digest into _known
    from event_store.event_schemas s
    where s.decider = v_decider and s.event = v_event and s.event_version = v_event_version;
    if _known <> _digest then
      raise exception 'event has another schema'
        using
          errcode = 'MR054',
          detail = format(
            'event %s version %s of decider %s has the schema with digest %s, not %s', v_event, v_event_version, v_decider,
            _known, _digest
          ),
          hint = 'Register the schema for another version of the event.';
    end if;
    exit when _known is not null or _attempt = 2;
    _compiled := event_store_private.compile_schema(v_schema);
    -- a session keeps 32 compiled patterns for all events that it appends; compiling one takes as long as an append
    select count(distinct m.pattern[1]) into _patterns
    from regexp_matches(_compiled.predicate, E'like_regex ("(?:[^"\\\\]|\\\\.)*")', 'g') m(pattern);
    if _patterns > 24 then
      perform event_store_private.refuse_schema(
        format('the schema has %s different patterns and lengths of texts, above 24', _patterns)
      );
    end if;
    perform event_store_private.bound_idle_transaction();
    perform event_store_private.lock_deciders();
  end loop;
  if _known is null then
    perform event_store_private.require_registrar(v_decider, v_event);
    -- the older version of a pair may get its schema later
    select pair.newer, event_store_private.unreadable_fields(pair.before, pair.after) into _newer, _unreadable
    from (
      select v_event_version, s.schema, v_schema
      from event_store.event_schemas s
      where s.decider = v_decider and s.event = v_event and s.event_version = v_event_version - 1
      union all
      select s.event_version, v_schema, s.schema
      from event_store.event_schemas s
      where s.decider = v_decider and s.event = v_event and s.event_version - 1 = v_event_version
    ) pair (newer, before, after)
    where event_store_private.unreadable_fields(pair.before, pair.after) is not null and not exists (
      select from event_store.event_upcasts u where u.decider = v_decider and u.event = v_event and u.to_version = pair.newer
    );
    if found then
      raise exception 'readers of the schema cannot read data of the version before'
        using
          errcode = 'MR051',
          detail = format(
            'event %s of decider %s, version %s after %s: %s', v_event, v_decider, _newer, _newer - 1, _unreadable
          ),
          hint = format(
            'Register an upcast to version %s first, with register_event_upcast, or make the fields optional.', _newer
          );
    end if;
    insert into event_store.event_schemas (decider, event, event_version, schema, checks, digest)
    values (v_decider, v_event, v_event_version, v_schema, _compiled.checks, _digest)
    on conflict do nothing;
    if not found then
      raise exception 'a schema is registered by a transaction that this one cannot see'
        using errcode = 'serialization_failure', hint = 'Repeat the transaction.';
    end if;
    select n.newer, event_store_private.personal_fault(v_decider, v_event, n.newer) into _newer, _unreadable
    from unnest(array[v_event_version, nullif(v_event_version, 9223372036854775807) + 1]) n(newer)
    where event_store_private.personal_fault(v_decider, v_event, n.newer) is not null
    limit 1;
    if found then
      raise exception 'what is personal does not stay so'
        using
          errcode = 'MR051',
          detail = format('event %s of decider %s, version %s after %s: %s', v_event, v_decider, _newer, _newer - 1, _unreadable),
          hint = 'Let the field be personal in the newer schema, or give what is stored in plain another name.';
    end if;
    perform set_config('event_store.registering', 'on', true);
    update event_store.deciders d
    set
      accepts = format('strict exists($ ? (%s))', _compiled.predicate)::jsonpath,
      seals = jsonb_path_exists(v_schema, '$.**."x-personal"')
    where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version
      and _compiled.predicate is not null;
    perform set_config('event_store.registering', '', true);
    perform event_store_private.audit(
      'register_event_schema', null, null,
      jsonb_build_object('decider', v_decider, 'event', v_event, 'event_version', v_event_version, 'digest', _digest)
    );
  end if;
  return query select v_decider, v_event, v_event_version, _digest;
end
$$;

comment on function event_store.register_event_schema(text, text, jsonb, bigint) is
'Sets the JSON Schema that data of an event must fit from now on, and returns its digest. An unregistered event is '
'registered with the schema''s description. The same schema again changes nothing. MR005 the schema has a keyword that is not '
'accepted, or is too large, or a name is empty or too long; MR034 the decider belongs to a capture; MR046 the decider belongs '
'to another role, or another one registered the event; MR051 data of a version cannot be read by the '
'schema of the next, and no upcast leads there, or a field ceases to be personal; MR054 the version of the event has another schema.';
revoke all on function event_store.register_event_schema(text, text, jsonb, bigint) from public;
grant execute on function event_store.register_event_schema(text, text, jsonb, bigint) to event_store_writer, event_store_owner;
