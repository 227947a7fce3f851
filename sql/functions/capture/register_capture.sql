-- The decider of each table may append inserted, updated, deleted, truncated, schema_changed and backfilled. A backfill
-- begins after publish_tables. key_columns are the columns that name a row: [] if nothing does (then no row is read),
-- null if that is unknown. The events of a table that is not stated any more stay. The same call again changes nothing.
-- Example: select register_capture('crm', 'crm_slot', 'crm_pub',
--   '[{"schema":"public","table":"customers","decider":"table:public.customers","fingerprint":"1"}]')
create or replace function event_store_platform.register_capture(
  v_capture text,
  v_slot text,
  v_publication text,
  v_tables jsonb
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
  _now constant timestamptz := event_store_private.clock();
  _fault text;
  _foreign text;
  _changed boolean;
begin
  if (v_capture ~ '^[a-z][a-z0-9_]{0,30}$') is not true then
    _fault := format('capture %L: a name has 1 to 31 of a-z, 0-9 and _, a letter first', v_capture);
  elsif coalesce(v_slot, '') = '' or coalesce(v_publication, '') = '' then
    _fault := format('slot %L, publication %L: both must be named', v_slot, v_publication);
  elsif v_tables is null or jsonb_typeof(v_tables) <> 'array' or jsonb_array_length(v_tables) = 0 then
    _fault := 'v_tables must be a JSON array of at least one table';
  else
    select string_agg(fault, '; ') into _fault
    from (
      select format('table %s of v_tables: schema, table, decider and fingerprint must be texts, key_columns null or an array of texts, stopped null or a text', t.number) as fault
      from jsonb_array_elements(v_tables) with ordinality t(element, number)
      where jsonb_typeof(t.element) <> 'object'
        or exists (
          select from unnest(array['schema', 'table', 'decider', 'fingerprint']) k(key)
          where jsonb_typeof(t.element -> k.key) is distinct from 'string' or (t.element ->> k.key = '' and k.key <> 'fingerprint')
        )
        or coalesce(jsonb_typeof(t.element -> 'key_columns'), 'null') not in ('null', 'array')
        or coalesce(jsonb_typeof(t.element -> 'stopped'), 'null') not in ('null', 'string')
        or (
          jsonb_typeof(t.element -> 'key_columns') = 'array' and jsonb_path_exists(t.element, '$.key_columns[*] ? (@.type() != "string")')
        )
      union all
      select format('%s %s is stated twice', k.what, k.name)
      from jsonb_array_elements(v_tables) t(element)
      cross join lateral (
        values ('table', quote_ident(t.element ->> 'schema') || '.' || quote_ident(t.element ->> 'table')), ('decider', t.element ->> 'decider')
      ) k(what, name)
      group by k.what, k.name
      having count(*) > 1
    ) faults;
  end if;
  if _fault is not null then
    perform event_store_private.refuse_request(_fault, 'Nothing was registered. The declaration in Python makes what is needed.');
  end if;

  insert into event_store.capture_names (capture) values (v_capture) on conflict do nothing;
  _changed := found;
  if _changed then
    insert into event_store.captures (capture, slot, publication, created_at, updated_at)
    values (v_capture, v_slot, v_publication, _now, _now);
  end if;
  _capture := event_store_private.lock_capture(v_capture);
  if (_capture.slot, _capture.publication) <> (v_slot, v_publication) then
    update event_store.captures set slot = v_slot, publication = v_publication where ctid = event_store_private.newest_capture(v_capture);
    _changed := true;
  end if;

  perform event_store_private.require_named_as_before(_capture, v_tables);
  delete from event_store.captured_tables c
  where c.capture = v_capture and not exists (
    select from jsonb_array_elements(v_tables) t(element)
    where t.element ->> 'schema' = c.schema_name and t.element ->> 'table' = c.table_name and t.element ->> 'decider' = c.decider
  );
  _changed := _changed or found;
  begin
    insert into event_store.captured_tables as c (
      capture, schema_name, table_name, decider, key_columns, fingerprint, backfill_offset, stopped_reason, stopped_at
    )
    select
      v_capture, t.element ->> 'schema', t.element ->> 'table', t.element ->> 'decider',
      case
        when jsonb_typeof(t.element -> 'key_columns') = 'array' then array(select jsonb_array_elements_text(t.element -> 'key_columns'))
      end,
      t.element ->> 'fingerprint',
      -- drawn, so that later offsets lie above it and earlier ones below
      nextval('event_store.events_offset_seq'),
      t.element ->> 'stopped',
      case when t.element ->> 'stopped' is not null then _now end
    from jsonb_array_elements(v_tables) t(element)
    order by 4 -- two captures that want each other's deciders never deadlock
    on conflict on constraint captured_tables_pkey do update
    set
      key_columns = excluded.key_columns,
      fingerprint = excluded.fingerprint,
      -- a table that was never published has no events
      is_new = c.is_new and c.published_xid is null,
      published_xid = null,
      backfill_offset = excluded.backfill_offset,
      backfill_key = null,
      backfilled_rows = 0,
      unchanged_rows = 0,
      gone_rows = 0,
      rows_read = false,
      finishing_key = null,
      backfill_generation = null,
      unread_reason = null,
      unread_at = null,
      stopped_reason = excluded.stopped_reason,
      stopped_at = case when excluded.stopped_reason is not null then coalesce(c.stopped_at, excluded.stopped_at) end
    where (c.fingerprint, c.key_columns, c.stopped_reason)
      is distinct from (excluded.fingerprint, excluded.key_columns, excluded.stopped_reason);
    _changed := _changed or found;
  exception when unique_violation then
    select string_agg(format('decider %s belongs to %s.%s of capture %s', c.decider, c.schema_name, c.table_name, c.capture), '; ')
    into _foreign
    from event_store.captured_tables c
    where c.capture <> v_capture and c.decider in (select t.element ->> 'decider' from jsonb_array_elements(v_tables) t(element));
    if _foreign is null then
      raise exception 'a decider is registered by a transaction that this one cannot see'
        using errcode = 'serialization_failure', hint = 'Repeat the transaction.';
    end if;
    raise exception 'decider belongs to another capture'
      using errcode = 'MR034', detail = _foreign, hint = 'Name another decider in the declaration of the table.';
  end;

  -- An event that a writer appended under such a decider would pass for a change of the table. So a capture's deciders
  -- belong to event_store_owner, from before its first event until after its last.
  perform event_store_private.lock_deciders();
  select string_agg(distinct format('decider %s is registered for %s', d.decider, coalesce('role ' || d.owner, 'every writer')), '; ')
  into _foreign
  from event_store.deciders d
  where d.decider in (select t.element ->> 'decider' from jsonb_array_elements(v_tables) t(element))
    and d.owner is distinct from 'event_store_owner';
  if _foreign is null then
    -- the source defines the content of a row
    select string_agg(format('decider %s has a schema for its event %s', s.decider, s.event), '; ') into _foreign
    from event_store.event_schemas s
    where s.decider in (select t.element ->> 'decider' from jsonb_array_elements(v_tables) t(element));
  end if;
  if _foreign is null then
    select string_agg(format('decider %s has an upcast for its event %s', u.decider, u.event), '; ') into _foreign
    from event_store.event_upcasts u
    where u.decider in (select t.element ->> 'decider' from jsonb_array_elements(v_tables) t(element));
  end if;
  if _foreign is not null then
    raise exception 'decider is not a capture''s'
      using errcode = 'MR034', detail = _foreign, hint = 'Name another decider in the declaration of the table.';
  end if;
  with registered as (
    insert into event_store.deciders as d (decider, event, event_version, description, owner)
    select
      t.element ->> 'decider', e.event, 1, format(e.description, t.element ->> 'schema', t.element ->> 'table'), 'event_store_owner'
    from jsonb_array_elements(v_tables) t(element)
    cross join (
      values
        ('inserted', 'A row of %s.%s was inserted, or came to meet the filter.'),
        ('updated', 'A row of %s.%s was updated.'),
        ('deleted', 'A row of %s.%s was deleted, or no longer meets the filter.'),
        ('truncated', 'The table %s.%s was truncated.'),
        ('schema_changed', 'The columns of %s.%s, or its replica identity, are other ones.'),
        ('backfilled', 'A row of %s.%s was there when the table was read.')
    ) e(event, description)
    order by 1, 2
    on conflict do nothing
    returning d.decider, d.event
  )
  update event_store.captured_tables c
  set is_new = true
  from registered r
  -- a decider that was not registered has no events
  where c.capture = v_capture and c.decider = r.decider and r.event = 'inserted';
  if _changed then
    perform event_store_private.audit(
      'register_capture', null, null,
      jsonb_build_object('capture', v_capture, 'slot', v_slot, 'publication', v_publication, 'tables', v_tables)
    );
  end if;
  return _changed;
end
$$;

comment on function event_store_platform.register_capture(text, text, text, jsonb) is
'Registers a capture of v_slot and v_publication with its tables, or changes it as stated, and returns whether '
'anything changed. v_tables is a JSON array of {schema, table, decider, key_columns, fingerprint, stopped}. A table '
'that is new or has another fingerprint is backfilled. One that is stopped, for the stated reason, is not captured '
'until it is stated without a reason, and then read again. One that is not stated any more is no longer captured. '
'MR005 a name or v_tables is malformed; MR034 a decider belongs to another capture, is registered for writers, has a '
'schema, or has live streams of rows that a key names and nothing names now, or the other way round.';
revoke all on function event_store_platform.register_capture(text, text, text, jsonb) from public;
grant execute on function event_store_platform.register_capture(text, text, text, jsonb) to event_store_owner;
