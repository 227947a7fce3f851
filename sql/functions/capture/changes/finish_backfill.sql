-- A row is gone if its stream is live, the backfill did not find it, and no change since has touched it: it was deleted
-- in a gap of the log, or by a changed filter. Its event has "gap": true. If the key of any row could not be read, no
-- row counts as gone.
-- Example: select finish_backfill('crm', 7, 'public', 'customers')
create or replace function event_store_platform.finish_backfill(
  v_capture text,
  v_lease_token bigint,
  v_schema text,
  v_table text,
  v_limit bigint default 10000
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
declare
  _capture event_store.captures;
  _table event_store.captured_tables;
  _key text;
  _gone bigint;
begin
  if (v_limit between 1 and 100000) is not true then
    perform event_store_private.refuse_request(format('v_limit is %s', coalesce(v_limit::text, 'null')), 'It is 1 to 100000.');
  end if;
  _capture := event_store_private.require_capture_lease(v_capture, v_lease_token);
  _table := event_store_private.known_captured_table(v_capture, v_schema, v_table);
  if _table.backfill_generation is not null then
    return true;
  end if;
  if not _table.rows_read then
    perform event_store_private.refuse_request(
      format('the rows of %s.%s of capture %L are not all read', v_schema, v_table, v_capture),
      'Call emit_backfill until it has the last chunk.'
    );
  end if;
  select d.to_key, d.deleted + d.held into _key, _gone
  from event_store_private.emit_deletions(_capture, _table.decider, _table, coalesce(_table.finishing_key, ''), v_limit) d;
  -- these streams are checked
  delete from event_store.unchanged_rows u
  where u.backfill_offset = _table.backfill_offset and (_key is null or (u.decider_id <= _key and u.decider_id <> ''));
  update event_store.captured_tables
  set
    finishing_key = _key,
    gone_rows = gone_rows + _gone,
    backfill_generation = case when _key is null then _capture.source_generation end,
    backfilled_at = case when _key is null then event_store_private.clock() else backfilled_at end
  where capture = v_capture and schema_name = v_schema and table_name = v_table;
  return _key is null;
end
$$;

comment on function event_store_platform.finish_backfill(text, bigint, text, text, bigint) is
'Ends a backfill of v_schema.v_table that has read every row: streams without a row any more get the event deleted. '
'Checks v_limit streams a call and returns whether it is done. MR005 rows are still to be read, or an argument is out '
'of range; MR011 the lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.finish_backfill(text, bigint, text, text, bigint) from public;
grant execute on function event_store_platform.finish_backfill(text, bigint, text, text, bigint) to event_store_owner;
