-- Stores a chunk of a table's rows, as a backfill read them in one snapshot of the source, as events backfilled, and
-- where the backfill stands, in one transaction. v_rows is a JSON array of {decider_id, event_id, command_id, data},
-- and fault for a row that cannot be read. v_high_lsn is a position of the source's log behind all that the snapshot
-- sees. v_done: there are no more rows. status says what happened:
--   stored       the rows are events but those that are as the last record of their stream says (unchanged), those that
--                are stored already or that the log has newer changes of (left_out), and those that wait in the
--                quarantine (held). Where the newest change lacks values that the log does not hold (unavailable), the row
--                becomes an event behind it nevertheless: as it was read, with what changed since;
--   behind       nothing: store and emit up to v_high_lsn first, then call again with the same chunk;
--   unpublished  nothing: the snapshot is older than the publication of the table; read the chunk again.
-- After the last chunk finish_backfill is due.
create or replace function event_store.emit_backfill(
  v_capture text,
  v_lease_token bigint,
  v_schema text,
  v_table text,
  v_snapshot pg_snapshot,
  v_high_lsn pg_lsn,
  v_rows jsonb,
  v_last_key text,
  v_done boolean
)
returns table (
  status text,
  appended bigint,
  left_out bigint,
  held bigint,
  unchanged bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  _capture event_store.captures;
  _table event_store.captured_tables;
  _after bigint;
  _truncated boolean;
  _rows bigint;
  _fresh bigint;
  _batch event_store_private.batch_event[];
begin
  if v_snapshot is null or v_high_lsn is null or v_done is null or jsonb_typeof(v_rows) is distinct from 'array' then
    perform event_store_private.refuse_request(
      format('v_snapshot %L, v_high_lsn %L, v_done %L, v_rows of type %L', v_snapshot, v_high_lsn, v_done, jsonb_typeof(v_rows)),
      'All are stated; v_rows is a JSON array.'
    );
  end if;
  _capture := event_store_private.require_capture_lease(v_capture, v_lease_token);
  _table := event_store_private.known_captured_table(v_capture, v_schema, v_table);
  appended := 0;
  left_out := 0;
  held := 0;
  unchanged := 0;
  status := case
    when (pg_snapshot_xmin(v_snapshot) >= _table.published_xid) is not true then 'unpublished'
    when (_capture.stored_lsn >= v_high_lsn) is not true or event_store_private.has_unemitted_changes(_capture) then 'behind'
    else 'stored'
  end;
  if status <> 'stored' or _table.rows_read then
    return next;
    return;
  end if;

  select last_value into _after from event_store.events_offset_seq;
  -- a TRUNCATE that the snapshot does not see removed all that it sees, and says so in the streams that had events only
  _truncated := exists (
    select from event_store_private.head_of_stream('[]', _table.decider) s
    join event_store.events e on e."offset" = s.last_offset
    cross join lateral event_store_private.change_origin(e.data) o
    where o.generation = _capture.source_generation and not pg_visible_in_snapshot(o.xid, v_snapshot)
  ) or exists (
    select from event_store.quarantined_changes q
    where q.decider_id = '[]' and q.decider = _table.decider
      and q.source_generation = _capture.source_generation and not pg_visible_in_snapshot(q.xid, v_snapshot)
  );
  begin
    with read as materialized (
      select
        r.number, r.element ->> 'decider_id' as decider_id, (r.element ->> 'event_id')::uuid as event_id,
        (r.element ->> 'command_id')::uuid as command_id, nullif(r.element -> 'data', 'null') as data, r.element ->> 'fault' as fault
      from jsonb_array_elements(v_rows) with ordinality r(element, number)
    ), placed as materialized (
      select
        r.*,
        s.final,
        e.event = 'updated' and e.data -> 'unavailable' <> '[]' as lacks,
        e.event in ('inserted', 'updated', 'backfilled')
          and jsonb_typeof(r.data -> 'record') = 'object'
          -- to the byte: 1.0 and 1.00 are equal, and not the same
          and record_image_eq(
            row(r.data -> 'record'),
            row(
              case
                when e.data -> 'unavailable' <> '[]' then event_store_private.last_record(r.decider_id, _table.decider)
                else e.data -> 'record'
              end
            )
          ) as told,
        exists (
          select from event_store.quarantined_changes q where q.decider_id = r.decider_id and q.decider = _table.decider
        ) as waits,
        -- what another generation says is older: this one's slot was made later; so is what says no generation
        _truncated or coalesce(
          o.generation = _capture.source_generation and not pg_visible_in_snapshot(o.xid, v_snapshot), false
        ) or exists (
          select from event_store.quarantined_changes q
          where q.decider_id = r.decider_id and q.decider = _table.decider
            and q.source_generation = _capture.source_generation and not pg_visible_in_snapshot(q.xid, v_snapshot)
        ) as newer
      from read r
      left join lateral event_store_private.head_of_stream(r.decider_id, _table.decider) s on true
      left join event_store.events e on e."offset" = s.last_offset
      left join lateral event_store_private.change_origin(e.data) o on true
      where not exists (select from event_store.events o where o.event_id = r.event_id)
        and not exists (select from event_store.quarantined_changes o where o.event_id = r.event_id)
    ), current as materialized (
      select
        p.number, p.decider_id, p.event_id, p.command_id, p.fault, p.final, p.waits,
        p.newer and since.record is null as newer,
        p.told and not p.newer and not p.waits and p.fault is null as unchanged,
        case when since.record is null then p.data else jsonb_set(p.data, '{record}', (p.data -> 'record') || since.record) end as data
      from placed p
      left join lateral (
        -- with all that changed since, every value that was read is as it is now
        select case when bool_and(n.event = 'updated') then jsonb_object_agg(v.key, v.value order by n."offset") end as record
        from event_store.events n
        cross join lateral event_store_private.change_origin(n.data) o
        cross join lateral jsonb_each(
          case jsonb_typeof(n.data -> 'record') when 'object' then n.data -> 'record' else '{"": null}' end
        ) v
        where n.decider_id = p.decider_id and n.decider = _table.decider
          and o.generation = _capture.source_generation and not pg_visible_in_snapshot(o.xid, v_snapshot)
          -- here, where it is asked before any event is looked at
          and p.newer and p.lacks and not p.waits and not _truncated and jsonb_typeof(p.data -> 'record') = 'object'
      ) since on true
    ), fresh as materialized (
      select
        c.*,
        case
          when c.unchanged is not true then coalesce(
            event_store_private.change_fault(
              c.fault, 'backfilled', c.event_id, _table.decider, c.decider_id, c.data, c.command_id
            ),
            case when c.final then 'its stream is closed by a final event' end
          )
        end as why
      from current c
    ), quarantined as (
      insert into event_store.quarantined_changes (
        capture, source_generation, decider, decider_id, action, event_id, command_id, data, fault, after_offset, quarantined_at
      )
      select
        v_capture, _capture.source_generation, _table.decider, f.decider_id, 'backfilled', f.event_id, f.command_id, f.data, f.why,
        _after, event_store_private.clock()
      from fresh f
      where (f.waits or f.why is not null) and not f.newer
      order by f.number
      returning 1
    ), kept as (
      -- the end of the backfill finds no event of it in their streams
      insert into event_store.unchanged_rows (backfill_offset, decider_id)
      select _table.backfill_offset, f.decider_id
      from fresh f
      where f.unchanged
      order by f.decider_id
      on conflict do nothing
    )
    select
      (select count(*) from read),
      count(*),
      count(*) filter (where f.newer),
      (select count(*) from quarantined),
      count(*) filter (where f.unchanged),
      array_agg(
        row(
          f.ordinal, 'backfilled', f.event_id, 1, _table.decider, f.decider_id, f.data, f.command_id, null, false, false,
          null, event_store_private.change_metadata(f.data)
        )::event_store_private.batch_event
        order by f.ordinal
      ) filter (where f.emits)
    into _rows, _fresh, left_out, held, unchanged, _batch
    from (
      select *, row_number() over (partition by emits order by number) as ordinal
      from (select *, not waits and why is null and not newer and fresh.unchanged is not true as emits from fresh) judged
    ) f;
  exception when data_exception or not_null_violation or check_violation then
    perform event_store_private.refuse_request(sqlerrm, 'Nothing of the chunk was stored.');
  end;
  if _batch is not null then
    perform event_store_private.append_batch(_batch);
  end if;
  appended := coalesce(cardinality(_batch), 0);
  left_out := left_out + _rows - _fresh;
  update event_store.captured_tables
  set backfill_key = coalesce(v_last_key, backfill_key), backfilled_rows = backfilled_rows + _rows, rows_read = v_done,
    unchanged_rows = unchanged_rows + emit_backfill.unchanged
  where capture = v_capture and schema_name = v_schema and table_name = v_table;
  return next;
end
$$;

comment on function event_store.emit_backfill(text, bigint, text, text, pg_snapshot, pg_lsn, jsonb, text, boolean) is
'Makes a chunk of the rows of v_schema.v_table events, as a backfill read them in v_snapshot of the source, and keeps'
' where it stands (v_last_key, v_done). v_rows is a JSON array of {decider_id, event_id, command_id, data, fault}; '
'v_high_lsn is a position of the source''s log behind all that the snapshot sees. Rows that are as their streams say '
'(unchanged) make no event. status is stored, behind (emit up to v_high_lsn first, then again) or unpublished (read the '
'chunk again). MR005 an argument is malformed; MR011 the lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store.emit_backfill(text, bigint, text, text, pg_snapshot, pg_lsn, jsonb, text, boolean) from public;
grant execute on function event_store.emit_backfill(text, bigint, text, text, pg_snapshot, pg_lsn, jsonb, text, boolean)
to event_store_owner;
