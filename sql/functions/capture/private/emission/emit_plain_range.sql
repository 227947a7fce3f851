-- It emits as emit_range does if the next v_limit changes are plain: none is a TRUNCATE, is unfit, has an unknown event
-- or a closed stream, or waits behind a change in the quarantine. Otherwise it does nothing.
-- The data go from wal_events into events as they are; only what gives a stream's next version is sorted and kept.
-- Rights are not checked again: a caller of emit_changes is a member of event_store_owner, which owns each captured
-- decider. An event that is stored already, and a version that another writer took, raise unique_violation.
create or replace function event_store_private.emit_plain_range(
  v_capture event_store.captures,
  v_limit bigint
)
returns table (
  changes bigint,
  to_lsn pg_lsn,
  to_idx bigint
)
language plpgsql
volatile
set search_path = event_store, pg_temp
-- One plan, with or without statistics: the changes in the order of their key.
as $$
-- planner: indexed ordered nested once
declare
  _purges constant bigint := pg_sequence_last_value('event_store.purge_seq');
  _now constant timestamptz := event_store_private.clock();
begin
  if current_setting('transaction_isolation') <> 'read committed' or (
    -- Checked before anything else: a row that waits may be one that changes all the time.
    exists (select from event_store.quarantined_changes q where q.capture = v_capture.capture)
    and exists (
      select
      from (
        select w.decider_id, w.decider
        from event_store.wal_events w
        where w.source_generation = v_capture.source_generation
          and (w.commit_lsn, w.commit_idx) > (v_capture.emitted_lsn, v_capture.emitted_idx)
          and w.commit_lsn < v_capture.stored_lsn
        order by w.commit_lsn, w.commit_idx
        limit v_limit
      ) ahead
      -- A change with an unknown stream holds no other one back. offset 0: one look-up per change, even in a plan that
      -- was made while nothing waited.
      where exists (
        select
        from event_store.quarantined_changes q
        where q.decider_id = ahead.decider_id and q.decider = ahead.decider
        offset 0
      )
    )
  ) then
    return next;
    return;
  end if;
  with ahead as ( -- not materialized, which would need another sort
    select
      w.ctid as at, w.commit_lsn, w.commit_idx, w.event_id, w.decider, w.decider_id, w.action,
      event_store_private.change_bytes(w.data) as bytes,
      w.action <> 'truncated' and event_store_private.change_fault(
        w.fault, w.action, w.event_id, w.decider, w.decider_id, w.data, w.command_id
      ) is null as plain
    from event_store.wal_events w
    where w.source_generation = v_capture.source_generation
      and (w.commit_lsn, w.commit_idx) > (v_capture.emitted_lsn, v_capture.emitted_idx)
      and w.commit_lsn < v_capture.stored_lsn
    order by w.commit_lsn, w.commit_idx
    limit v_limit
  ), taken as materialized (
    select a.*
    from (
      select *, sum(bytes) over so_far - bytes as bytes_before, row_number() over so_far as nth
      from ahead
      window so_far as (order by commit_lsn, commit_idx rows unbounded preceding)
    ) a
    where a.bytes_before < 33554432
  ), known as materialized (
    select bool_and(k.plain and exists (
      select from event_store.deciders d where d.decider = k.decider and d.event = k.action and d.event_version = 1
    )) as plain
    from (select t.decider, t.action, bool_and(t.plain) as plain from taken t group by t.decider, t.action) k
  ), linked as (
    select
      t.at, t.nth, t.decider, t.decider_id,
      lag(t.event_id) over stream as id_before,
      row_number() over stream as number
    from taken t
    window stream as (partition by t.decider_id, t.decider order by t.nth)
  ), chained as materialized (
    select
      l.at, l.nth,
      coalesce(l.id_before, head.last_event_id) as follows,
      head.final,
      coalesce(first_value(head.version) over (partition by l.decider_id, l.decider order by l.nth), 0) + l.number as version
    from linked l
    left join lateral (
      select h.* from event_store_private.head_of_stream(l.decider_id, l.decider) h where l.number = 1
    ) head on true
  ), offsets as materialized (
    -- One statement: the offsets are drawn after it began to see the heads, so they rise along each stream.
    select array(select nextval('event_store.events_offset_seq') from generate_series(1, (select count(*) from taken))) as drawn
  ), appended as (
    insert into event_store.events (
      event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset", version, metadata
    )
    select
      w.action, w.event_id, 1, w.decider, w.decider_id, w.data, w.command_id, c.follows, false, _now,
      (select o.drawn from offsets o)[c.nth], c.version, event_store_private.change_metadata(w.data)
    from (select * from chained order by nth) c
    -- A change is never updated, so its ctid stays valid. offset 0: one look-up per change, whenever the plan was made.
    cross join lateral (
      select x.*
      from event_store.wal_events x
      where x.ctid = c.at
      offset 0
    ) w
    where (select k.plain from known k) and not exists (select from chained f where f.final)
    returning 1
  )
  select
    nullif((select count(*) from appended), 0), l.commit_lsn, l.commit_idx
  into changes, to_lsn, to_idx
  from (select t.commit_lsn, t.commit_idx from taken t order by t.nth desc limit 1) l;
  if changes is not null then
    if pg_sequence_last_value('event_store.purge_seq') is distinct from _purges then
      perform event_store_private.require_unpurged(
        array(
          select w.event_id
          from event_store.wal_events w
          where w.source_generation = v_capture.source_generation
            and (w.commit_lsn, w.commit_idx) > (v_capture.emitted_lsn, v_capture.emitted_idx)
            and (w.commit_lsn, w.commit_idx) <= (to_lsn, to_idx)
        )
      );
    end if;
    if pg_sequence_last_value('event_store.attended_seq') % 2 = 1 then -- a sequencer sleeps
      perform event_store_private.wake_sequencer();
    end if;
  end if;
  return next;
end
$$;

comment on function event_store_private.emit_plain_range(event_store.captures, bigint) is
'Emits the next stored changes of a locked capture where all of them are plain; changes is null where they are not.';
