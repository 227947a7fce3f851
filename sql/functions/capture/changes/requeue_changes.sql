-- A change still has a fault if repair_change has not given it data, or if it exceeds the limits of append_event.
-- Example: select * from requeue_changes('crm', v_reason => 'the decoder knows the type now')
create or replace function event_store_platform.requeue_changes(
  v_capture text,
  v_decider text default null,
  v_decider_id text default null,
  v_reason text default null
)
returns table (
  requeued bigint,
  waiting bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
declare
  _seen bigint := 0; -- this call has checked every change up to this one
  _last bigint;
  _batch event_store_private.batch_event[];
begin
  if v_decider_id is not null and v_decider is null then
    perform event_store_private.refuse_request('v_decider_id is stated without v_decider', 'A stream is named by both.');
  end if;
  perform event_store_private.lock_capture(v_capture);
  requeued := 0;
  loop
    with ahead as materialized (
      select q.*, event_store_private.change_bytes(q.data) as bytes
      from event_store.quarantined_changes q
      where q.capture = v_capture and q.quarantine_id > _seen
        and (v_decider is null or q.decider = v_decider)
        and (v_decider_id is null or q.decider_id = v_decider_id)
      order by q.quarantine_id
      limit 10000
    ), taken as materialized (
      select
        a.*,
        coalesce(
          event_store_private.change_fault(
            case when a.data is null then a.fault end, a.action, a.event_id, a.decider, a.decider_id, a.data, a.command_id
          ),
          event_store_private.append_fault(a.action, a.event_id, a.decider, a.decider_id, a.data, a.command_id)
        ) as why
      from (select *, sum(bytes) over (order by quarantine_id rows unbounded preceding) - bytes as bytes_before from ahead) a
      where a.bytes_before < 33554432
    ), flowing as materialized (
      select j.*, row_number() over (order by j.quarantine_id) as number
      from (
        select
          t.*,
          bool_or(t.why is not null) over (
            partition by t.decider_id, t.decider order by t.quarantine_id rows unbounded preceding
          ) as waits
        from taken t
      ) j
      where not j.waits and not exists (
        -- a change that this call checked and left stays before later ones
        select from event_store.quarantined_changes b
        where b.decider_id = j.decider_id and b.decider = j.decider and b.quarantine_id <= _seen
      )
    ), taken_out as (
      delete from event_store.quarantined_changes q using flowing f where q.quarantine_id = f.quarantine_id
    )
    select
      (select max(t.quarantine_id) from taken t),
      array_agg(
        row(
          f.number, f.action, f.event_id, 1, f.decider, f.decider_id, f.data, f.command_id, null, false, false,
          null, event_store_private.change_metadata(f.data)
        )::event_store_private.batch_event
        order by f.number
      )
    into _last, _batch
    from flowing f;
    exit when _last is null;
    if _batch is not null then
      perform event_store_private.append_batch(_batch);
      requeued := requeued + cardinality(_batch);
    end if;
    _seen := _last;
  end loop;
  select count(*) into waiting
  from event_store.quarantined_changes q
  where q.capture = v_capture
    and (v_decider is null or q.decider = v_decider)
    and (v_decider_id is null or q.decider_id = v_decider_id);
  perform event_store_private.audit(
    'requeue_changes', null, v_reason,
    jsonb_build_object(
      'capture', v_capture, 'decider', v_decider, 'decider_id', v_decider_id, 'requeued', requeued, 'waiting', waiting
    )
  );
  return next;
end
$$;

comment on function event_store_platform.requeue_changes(text, text, text, text) is
'Turns quarantined changes into events: of a capture, of v_decider, or of the stream (v_decider, v_decider_id). Each '
'stream continues up to its first change that still has a fault. Returns how many became events and how many wait; '
'audited with v_reason. MR005 v_decider_id without v_decider; MR030 unknown capture.';
revoke all on function event_store_platform.requeue_changes(text, text, text, text) from public;
grant execute on function event_store_platform.requeue_changes(text, text, text, text) to event_store_owner;
