-- The caller has locked the capture's row, and moves the capture to the position that this returns. It takes at most
-- v_limit changes and about 32 MiB of data. Changes with a fault go into the quarantine, and so do later ones of their
-- streams, which wait.
-- v_careful: checks for each change whether the store would append it, instead of finding out by trying.
create or replace function event_store_private.emit_range(
  v_capture event_store.captures,
  v_limit bigint,
  v_careful boolean
)
returns table (
  changes bigint,
  quarantined bigint,
  held bigint,
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
  _some_wait constant boolean := exists (select from event_store.quarantined_changes q where q.capture = v_capture.capture);
  _after bigint;
  _batch event_store_private.batch_event[];
begin
  select last_value into _after from event_store.events_offset_seq;
  with ahead as materialized (
    select w.*, event_store_private.change_bytes(w.data) as bytes
    from event_store.wal_events w
    where w.source_generation = v_capture.source_generation
      and (w.commit_lsn, w.commit_idx) > (v_capture.emitted_lsn, v_capture.emitted_idx)
      and w.commit_lsn < v_capture.stored_lsn
    order by w.commit_lsn, w.commit_idx
    limit v_limit
  ), taken as materialized (
    select
      a.*,
      coalesce(
        event_store_private.change_fault(a.fault, a.action, a.event_id, a.decider, a.decider_id, a.data, a.command_id),
        case
          when v_careful then event_store_private.append_fault(a.action, a.event_id, a.decider, a.decider_id, a.data, a.command_id)
        end
      ) as why
    from (
      select
        *,
        bool_or(action = 'truncated') over so_far as truncates,
        sum(bytes) over so_far - bytes as bytes_before,
        row_number() over so_far as nth
      from ahead
      window so_far as (order by commit_lsn, commit_idx rows unbounded preceding)
    ) a
    where not a.truncates and a.bytes_before < 33554432
  ), judged as materialized (
    -- usually nothing waits, and then nothing is sorted
    select t.*, false as waits, t.nth as number
    from taken t
    where not (_some_wait or (select bool_or(f.why is not null) from taken f))
    union all
    select x.*, row_number() over (partition by x.waits order by x.nth) as number
    from (
      select
        w.*,
        -- a change with an unknown stream holds no other one back
        w.why is not null or bool_or(w.why is not null) over (
          partition by w.decider_id, w.decider order by w.nth rows unbounded preceding
        ) or (
          _some_wait
          and exists (select from event_store.quarantined_changes q where q.decider_id = w.decider_id and q.decider = w.decider)
        ) as waits
      from taken w
      where _some_wait or (select bool_or(f.why is not null) from taken f)
    ) x
  ), quarantined as (
    insert into event_store.quarantined_changes (
      capture, source_generation, commit_lsn, commit_idx, xid, committed_at, decider, decider_id, action, event_id, command_id,
      data, fault, raw, relation, after_offset, quarantined_at
    )
    select
      v_capture.capture, j.source_generation, j.commit_lsn, j.commit_idx, j.xid, j.committed_at, j.decider, j.decider_id,
      j.action, j.event_id, j.command_id, j.data, j.why, j.raw, j.relation, _after, event_store_private.clock()
    from judged j
    where j.waits
    order by j.commit_lsn, j.commit_idx
  )
  select
    count(*),
    count(*) filter (where j.why is not null),
    count(*) filter (where j.waits and j.why is null),
    (select t.commit_lsn from taken t order by t.nth desc limit 1),
    (select t.commit_idx from taken t order by t.nth desc limit 1),
    array_agg(
      row(
        j.number, j.action, j.event_id, 1, j.decider, j.decider_id, j.data, j.command_id, null, false, false,
        null, event_store_private.change_metadata(j.data)
      )::event_store_private.batch_event
      order by j.number
    ) filter (where not j.waits)
  into changes, quarantined, held, to_lsn, to_idx, _batch
  from judged j;
  if _batch is not null then
    perform event_store_private.append_batch(_batch);
  end if;
  return next;
end
$$;

comment on function event_store_private.emit_range(event_store.captures, bigint, boolean) is
'Emits the next stored changes of a locked capture, up to the next TRUNCATE.';
