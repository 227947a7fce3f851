-- It runs alongside the capture's process. An unfinished verification of the same table is over. Without v_repairs,
-- differences are only counted. verify_rows and end_verification take the number.
-- Example: select begin_verification('crm', 'public', 'customers', '742', false, null)
create or replace function event_store_platform.begin_verification(
  v_capture text,
  v_schema text,
  v_table text,
  v_published_xid xid8,
  v_repairs boolean,
  v_reason text
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
  _table event_store.captured_tables;
  _verification bigint;
begin
  if v_published_xid is null or v_repairs is null or (v_repairs and coalesce(v_reason, '') = '') then
    perform event_store_private.refuse_request(
      format('v_published_xid %L, v_repairs %L, v_reason %L', v_published_xid, v_repairs, v_reason),
      'State pg_current_xact_id() of the source and whether to repair; a repair has a reason.'
    );
  end if;
  _capture := event_store_private.lock_capture(v_capture);
  _table := event_store_private.known_captured_table(v_capture, v_schema, v_table);
  if (_table.backfill_generation = _capture.source_generation) is not true
    or exists (select from event_store.capture_gaps g where g.capture = v_capture and g.resolved_by_generation is null)
  then
    raise exception 'table is to be read anew'
      using
        errcode = 'MR036',
        detail = format(
          '%s.%s of capture %L: %s', v_schema, v_table, v_capture,
          coalesce('it is stopped: ' || _table.stopped_reason, 'its backfill has not ended, or a gap is open')
        ),
        hint = 'Let the capture run until it is read; it finds what differs. After a gap: millrace capture restart.';
  end if;
  if _table.key_columns = '{}' then
    perform event_store_private.refuse_request(
      format('nothing names the rows of %s.%s, so there is no telling which event is of which row', v_schema, v_table),
      'Read and compare tables that have a key, or are declared with one.'
    );
  end if;
  delete from event_store.verifications where capture = v_capture and schema_name = v_schema and table_name = v_table;
  _verification := nextval('event_store.events_offset_seq');
  insert into event_store.verifications (
    backfill_offset, capture, schema_name, table_name, source_generation, published_xid, repairs, began_at
  )
  values (
    _verification, v_capture, v_schema, v_table, _capture.source_generation, v_published_xid, v_repairs, event_store_private.clock()
  );
  if v_repairs then
    perform event_store_private.audit(
      'begin_verification', null, v_reason,
      jsonb_build_object('capture', v_capture, 'schema', v_schema, 'table', v_table, 'verification', _verification)
    );
  end if;
  return _verification;
end
$$;

comment on function event_store_platform.begin_verification(text, text, text, xid8, boolean, text) is
'Begins to compare the table v_schema.v_table with its streams, in snapshots of the source that see all transactions '
'older than v_published_xid, and returns the verification''s number. v_repairs: differences become events, audited '
'with v_reason. MR005 unknown table, nothing names its rows, or an argument is missing; MR030 unknown capture; MR036 '
'the table''s backfill has not ended, or a gap is open.';
revoke all on function event_store_platform.begin_verification(text, text, text, xid8, boolean, text) from public;
grant execute on function event_store_platform.begin_verification(text, text, text, xid8, boolean, text) to event_store_owner;
