-- It appends events backfilled, in the order of the rows' numbers; all that the snapshot sees is emitted before. The
-- caller holds the capture's lock, and identifies the reading by v_table.backfill_offset. v_mode:
--   backfill  a row of a stream in the quarantine waits there, behind its changes;
--   repair    it replaces its stream's quarantined changes, if the snapshot sees these and it can be an event;
--   verify    nothing is appended or quarantined: appended counts the rows that would be.
-- missing of the appended have no live stream. differing: up to twenty of their keys.
create or replace function event_store_private.place_rows(
  v_capture event_store.captures,
  v_table event_store.captured_tables,
  v_snapshot pg_snapshot,
  v_rows event_store_private.read_row[],
  v_mode text
)
returns table (
  rows bigint,
  appended bigint,
  left_out bigint,
  held bigint,
  unchanged bigint,
  missing bigint,
  differing text[]
)
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed nested once
#variable_conflict use_column
declare
  _after bigint;
  _truncated boolean;
  _fresh bigint;
  _superseded text[];
  _batch event_store_private.batch_event[];
begin
  select last_value into _after from event_store.events_offset_seq;
  -- A TRUNCATE that the snapshot does not see removed all its rows. Only streams that had events record that.
  _truncated := exists (
    select from event_store_private.head_of_stream('[]', v_table.decider) s
    join event_store.events e on e."offset" = s.last_offset
    cross join lateral event_store_private.change_origin(e.data) o
    where o.generation = v_capture.source_generation and not pg_visible_in_snapshot(o.xid, v_snapshot)
  ) or exists (
    select from event_store.quarantined_changes q
    where q.decider_id = '[]' and q.decider = v_table.decider
      and q.source_generation = v_capture.source_generation and not pg_visible_in_snapshot(q.xid, v_snapshot)
  );
  begin
    with read as materialized (
      select r.* from unnest(v_rows) r
    ), placed as materialized (
      select
        r.*,
        s.final,
        s.last_offset is null or e.event = 'deleted' as missing,
        e.event = 'updated' and e.data -> 'unavailable' <> '[]' as lacks,
        e.event in ('inserted', 'updated', 'backfilled')
          and jsonb_typeof(r.data -> 'record') = 'object'
          -- to the byte: 1.0 and 1.00 are equal, but not identical
          and (
            record_image_eq(row(r.data -> 'record'), row(l.record))
            -- where the key of a sealed value is forgotten
            or l.record <> r.data -> 'record' and event_store_private.is_same_data(l.record, r.data -> 'record')
          ) as told,
        exists (
          select from event_store.quarantined_changes q where q.decider_id = r.decider_id and q.decider = v_table.decider
        ) as waits,
        -- A change of another generation is older, for this slot was made later; so is one without a generation.
        _truncated or coalesce(
          o.generation = v_capture.source_generation and not pg_visible_in_snapshot(o.xid, v_snapshot), false
        ) or exists (
          select from event_store.quarantined_changes q
          where q.decider_id = r.decider_id and q.decider = v_table.decider
            and q.source_generation = v_capture.source_generation and not pg_visible_in_snapshot(q.xid, v_snapshot)
        ) as newer
      from read r
      left join lateral event_store_private.head_of_stream(r.decider_id, v_table.decider) s on true
      -- "offset 0": one look-up per row, even if the plan was made for a store without events
      left join lateral (select h.event, h.data from event_store.events h where h."offset" = s.last_offset offset 0) e on true
      left join lateral event_store_private.change_origin(e.data) o on true
      left join lateral (
        select
          case
            when e.data -> 'unavailable' <> '[]' then event_store_private.last_record(r.decider_id, v_table.decider)
            else e.data -> 'record'
          end as record
        where e.event in ('inserted', 'updated', 'backfilled')
        offset 0
      ) l on true
      where not exists (
          select from event_store.events o
          -- any writer may append under the id of a row, but not to its stream
          where o.event_id = r.event_id and o.decider = v_table.decider and o.decider_id = r.decider_id offset 0
        )
        and not exists (select from event_store.quarantined_changes o where o.event_id = r.event_id offset 0)
    ), current as materialized (
      select
        p.number, p.decider_id, p.event_id, p.command_id, p.fault, p.final, p.waits, p.missing,
        p.newer and since.record is null as newer,
        p.told and not p.newer and (v_mode = 'repair' or not p.waits) and p.fault is null as unchanged,
        case when since.record is null then p.data else jsonb_set(p.data, '{record}', (p.data -> 'record') || since.record) end as data
      from placed p
      left join lateral (
        -- with all later changes, every value of the read row is current
        select case when bool_and(n.event = 'updated') then jsonb_object_agg(v.key, v.value order by n."offset") end as record
        from event_store.events n
        cross join lateral event_store_private.change_origin(n.data) o
        cross join lateral jsonb_each(
          case jsonb_typeof(n.data -> 'record') when 'object' then n.data -> 'record' else '{"": null}' end
        ) v
        where n.decider_id = p.decider_id and n.decider = v_table.decider
          and o.generation = v_capture.source_generation and not pg_visible_in_snapshot(o.xid, v_snapshot)
          -- here, so that it is checked before any event is read
          and p.newer and p.lacks and not p.waits and not _truncated and jsonb_typeof(p.data -> 'record') = 'object'
      ) since on true
    ), fresh as materialized (
      select
        c.*,
        -- the row read now replaces changes that could not be read
        v_mode = 'repair' and c.waits and not c.newer as supersedes,
        case
          when c.unchanged is not true then coalesce(
            event_store_private.change_fault(
              c.fault, 'backfilled', c.event_id, v_table.decider, c.decider_id, c.data, c.command_id
            ),
            case
              when c.final then 'its stream is closed by a final event'
              when exists (select from event_store.events o where o.event_id = c.event_id offset 0)
                then format('event_id %s is stored with other content', c.event_id)
            end
          )
        end as why
      from current c
    ), quarantined as (
      insert into event_store.quarantined_changes (
        capture, source_generation, decider, decider_id, action, event_id, command_id, data, fault, after_offset, quarantined_at
      )
      select
        v_capture.capture, v_capture.source_generation, v_table.decider, f.decider_id, 'backfilled', f.event_id, f.command_id, f.data, f.why,
        _after, event_store_private.clock()
      from fresh f
      where (f.waits or f.why is not null) and not f.newer
        and (v_mode = 'backfill' or (v_mode = 'repair' and not f.waits))
      order by f.number
    ), kept as (
      -- The end of the backfill finds no event of it in these streams. '' is a row with a key that could not be read.
      insert into event_store.unchanged_rows (backfill_offset, decider_id)
      select v_table.backfill_offset, coalesce(f.decider_id, '')
      from fresh f
      where f.decider_id is null or f.unchanged or v_mode <> 'backfill'
      order by 2
      on conflict do nothing
    )
    select
      (select count(*) from read),
      count(*),
      count(*) filter (where f.newer),
      count(*) filter (where f.waits_now and not f.newer),
      count(*) filter (where f.unchanged),
      count(*) filter (where f.emits),
      count(*) filter (where f.emits and f.missing),
      (array_agg(f.decider_id order by f.number) filter (where f.emits))[1:20],
      array_agg(f.decider_id) filter (where f.supersedes and f.why is null),
      array_agg(
        row(
          f.ordinal, 'backfilled', f.event_id, 1, v_table.decider, f.decider_id, f.data, f.command_id, null, false, false,
          null, event_store_private.change_metadata(f.data)
        )::event_store_private.batch_event
        order by f.ordinal
      ) filter (where f.emits and v_mode <> 'verify')
    into rows, _fresh, left_out, held, unchanged, appended, missing, differing, _superseded, _batch
    from (
      select *, row_number() over (partition by emits order by number) as ordinal
      from (
        select
          *,
          why is not null or waits and not supersedes as waits_now,
          (supersedes or not waits) and why is null and not newer and fresh.unchanged is not true as emits
        from fresh
      ) judged
    ) f;
  exception when data_exception or not_null_violation or check_violation then
    perform event_store_private.refuse_request(sqlerrm, 'Nothing of the chunk was stored.');
  end;
  if _superseded is not null then
    perform event_store_private.supersede_changes(
      v_table, array(select q.quarantine_id from event_store.quarantined_changes q where q.decider_id = any(_superseded) and q.decider = v_table.decider)
    );
  end if;
  if _batch is not null then
    perform event_store_private.append_batch(_batch);
  end if;
  left_out := left_out + rows - _fresh;
  return next;
end
$$;

comment on function event_store_private.place_rows(event_store.captures, event_store.captured_tables, pg_snapshot, event_store_private.read_row[], text) is
'Compares rows of a captured table with its streams, and appends those that differ.';
