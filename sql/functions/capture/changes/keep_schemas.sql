-- Columns differ by name or type. v_schemas is in the order of the log. An element is
--   {schema, table, identity, columns, commit_lsn, commit_idx}: the schema in the log from that change on; stored in
--     the transaction of store_changes that stores the event schema_changed;
--   {schema, table, identity, columns, leaves, filled, labels}: the schema in the source's catalog now. filled are the
--     new partitions that have rows, labels those of its enums by their ids. It is only compared, and is the first
--     schema of a table without one.
-- A column is {name, type_oid, type_modifier, type, key}. v_read_lsn is from before the catalog was read: every row
-- read from now on includes all earlier changes.
-- Example: select keep_schemas('crm', 7, '0/16B3748', '[{"schema": "public", "table": "customers", "identity": "d",
--   "columns": [{"name": "id", "type_oid": 23, "type_modifier": -1, "type": "integer", "key": true}]}]')
create or replace function event_store_platform.keep_schemas(
  v_capture text,
  v_lease_token bigint,
  v_read_lsn pg_lsn,
  v_schemas jsonb
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
  _told record;
  _table event_store.captured_tables;
  _differs boolean;
  _rereads bigint := 0;
begin
  if v_read_lsn is null or jsonb_typeof(v_schemas) is distinct from 'array' then
    perform event_store_private.refuse_request(
      format('v_read_lsn %L, v_schemas of type %L', v_read_lsn, jsonb_typeof(v_schemas)), 'Both are stated; v_schemas is a JSON array.'
    );
  end if;
  _capture := event_store_private.require_capture_lease(v_capture, v_lease_token);
  if _capture.source_generation is null then
    perform event_store_private.refuse_request(format('capture %L has no slot yet', v_capture), 'Make the slot and call begin_generation.');
  end if;
  for _told in
    select
      s.element ->> 'schema' as schema_name, s.element ->> 'table' as table_name, s.element ->> 'identity' as identity,
      s.element -> 'columns' as columns, (s.element ->> 'commit_lsn')::pg_lsn as lsn, (s.element ->> 'commit_idx')::bigint as idx,
      case jsonb_typeof(s.element -> 'leaves') when 'array' then array(select jsonb_array_elements_text(s.element -> 'leaves')::bigint) end
        as leaves,
      coalesce(jsonb_array_length(s.element -> 'filled'), 0) > 0 as filled,
      coalesce(s.element -> 'labels', '{}') as labels
    from jsonb_array_elements(v_schemas) with ordinality s(element, number)
    order by s.number
  loop
    _table := event_store_private.known_captured_table(v_capture, _told.schema_name, _told.table_name);
    -- most tables have not changed since the last look
    continue when _told.lsn is null and not _told.filled and _told.columns = _table.read_columns and _told.leaves = _table.leaves
      and _told.labels = _table.labels and (_table.rows_read or _table.backfill_key is not null);
    _differs := event_store_private.value_columns(_told.columns) <> event_store_private.value_columns(_table.read_columns);
    if _told.lsn is not null then
      _table.schemas := event_store_private.reachable_schemas(_table.schemas, _capture) || jsonb_build_object(
        'generation', _capture.source_generation, 'lsn', _told.lsn, 'idx', _told.idx, 'identity', _told.identity, 'columns', _told.columns
      );
      if _differs and (_told.lsn < _table.read_lsn) is not true then
        _rereads := _rereads + 1;
        _table := event_store_private.read_anew(_table, v_read_lsn);
      end if;
      if (_told.lsn < _table.columns_lsn) is not true then
        _table.read_columns := _told.columns;
        _table.columns_lsn := _told.lsn;
      end if;
    else
      if (
        _differs or _told.filled or not _table.leaves <@ _told.leaves
        or exists (select from jsonb_each(_told.labels) n join jsonb_each(_table.labels) o using (key) where n.value <> o.value)
      )
        and (_table.rows_read or _table.backfill_key is not null)
      then
        _rereads := _rereads + 1;
        _table := event_store_private.read_anew(_table, v_read_lsn);
      end if;
      if not (_table.rows_read or _table.backfill_key is not null) then
        -- no row is read yet, so all rows will have these columns, or later ones
        _table.read_columns := _told.columns;
        _table.columns_lsn := v_read_lsn;
        _table.read_lsn := v_read_lsn;
        if _table.schemas = '[]' then
          _table.schemas := jsonb_build_array(
            jsonb_build_object(
              'generation', _capture.source_generation, 'lsn', _capture.stored_lsn, 'idx', -1, 'identity', _told.identity,
              'columns', _told.columns
            )
          );
        end if;
      end if;
      _table.leaves := _told.leaves;
      _table.labels := _told.labels;
    end if;
    update event_store.captured_tables t
    set
      schemas = _table.schemas, read_columns = _table.read_columns, columns_lsn = _table.columns_lsn, read_lsn = _table.read_lsn,
      leaves = _table.leaves, labels = _table.labels, published_xid = _table.published_xid, backfill_offset = _table.backfill_offset,
      backfill_key = _table.backfill_key, backfilled_rows = _table.backfilled_rows, unchanged_rows = _table.unchanged_rows,
      gone_rows = _table.gone_rows, rows_read = _table.rows_read, finishing_key = _table.finishing_key,
      backfill_generation = _table.backfill_generation, is_new = _table.is_new,
      unread_reason = _table.unread_reason, unread_at = _table.unread_at
    where t.capture = v_capture and t.schema_name = _told.schema_name and t.table_name = _told.table_name
      and t is distinct from _table;
  end loop;
  return _rereads;
exception when data_exception then
  perform event_store_private.refuse_request(sqlerrm, 'v_schemas is as the comment says. Nothing was kept.');
end
$$;

comment on function event_store_platform.keep_schemas(text, bigint, pg_lsn, jsonb) is
'Keeps the columns of captured tables, as the log (commit_lsn, commit_idx) or the catalog of the source has them. A '
'table is read again if its rows were captured with other columns, other partitions have rows, or labels of enums are '
'renamed. v_schemas is a JSON array of {schema, table, identity, columns, commit_lsn, commit_idx, leaves, filled, '
'labels}; v_read_lsn is an earlier position of the log. Returns how many tables to read again, after publish_tables. '
'MR005 an argument is null or malformed; MR011 the lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.keep_schemas(text, bigint, pg_lsn, jsonb) from public;
grant execute on function event_store_platform.keep_schemas(text, bigint, pg_lsn, jsonb) to event_store_owner;
