-- No backfill reads a table before this.
create or replace function event_store_platform.publish_tables(
  v_capture text,
  v_lease_token bigint,
  v_published_xid xid8
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
  _published bigint;
begin
  if v_published_xid is null then
    perform event_store_private.refuse_request(
      'v_published_xid is null', 'State pg_current_xact_id() of the source, as it is after the publication was changed.'
    );
  end if;
  _capture := event_store_private.require_capture_lease(v_capture, v_lease_token);
  update event_store.captured_tables
  set
    -- An earlier transaction's changes may be missing from the slot: streams are searched for rows that are gone.
    published_xid = v_published_xid, is_new = false, rows_read = rows_read or coalesce(key_columns = '{}', false),
    backfill_generation = case when key_columns = '{}' then _capture.source_generation else backfill_generation end
  where capture = v_capture and published_xid is null and stopped_reason is null;
  get diagnostics _published = row_count;
  return _published;
end
$$;

comment on function event_store_platform.publish_tables(text, bigint, xid8) is
'Records that the publication has the tables as they are registered, and returns how many were new in it. These may '
'now be backfilled, unless they lack key columns, in snapshots that see all transactions of the source older than '
'v_published_xid. MR005 v_published_xid is null; MR011 the lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.publish_tables(text, bigint, xid8) from public;
grant execute on function event_store_platform.publish_tables(text, bigint, xid8) to event_store_owner;
