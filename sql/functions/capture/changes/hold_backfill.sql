-- Meanwhile the table's changes are captured, and its backfill continues later from the same place.
-- Example: select hold_backfill('crm', 7, 'public', 'customers', 'invalid page in block 3')
create or replace function event_store_platform.hold_backfill(
  v_capture text,
  v_lease_token bigint,
  v_schema text,
  v_table text,
  v_reason text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _table event_store.captured_tables;
begin
  if v_reason = '' then
    perform event_store_private.refuse_request('v_reason is empty', 'State a reason, or null.');
  end if;
  perform event_store_private.require_capture_lease(v_capture, v_lease_token);
  _table := event_store_private.known_captured_table(v_capture, v_schema, v_table);
  update event_store.captured_tables
  set unread_reason = v_reason, unread_at = case when v_reason is not null then event_store_private.clock() end
  where capture = v_capture and schema_name = v_schema and table_name = v_table
    and (v_reason is not null or unread_reason is not null);
  return v_reason is distinct from _table.unread_reason;
end
$$;

comment on function event_store_platform.hold_backfill(text, bigint, text, text, text) is
'Records why the rows of table v_schema.v_table cannot be read now, with the remedy, or with null that they can; '
'returns whether that is news. MR005 the table is not registered, or v_reason is empty; MR011 the lease v_lease_token '
'is lost; MR030 unknown capture.';
revoke all on function event_store_platform.hold_backfill(text, bigint, text, text, text) from public;
grant execute on function event_store_platform.hold_backfill(text, bigint, text, text, text) to event_store_owner;
