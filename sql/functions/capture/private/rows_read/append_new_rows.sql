-- Each row becomes the first event of its stream, backfilled. The caller holds the capture's lock. Rows that have a
-- fault, a stream, or anything in the quarantine are left for place_rows; so are all rows if a TRUNCATE or anything
-- unusual came in between. The arguments are those of emit_backfill. The rows go from their arrays into events as they
-- are: nothing is sorted, joined or kept in between.
create or replace function event_store_private.append_new_rows(
  v_table event_store.captured_tables,
  v_decider_ids text[],
  v_event_ids uuid[],
  v_command_id uuid,
  v_data text[],
  v_faults text[]
)
returns uuid[]
language plpgsql
volatile
set search_path = event_store, pg_temp
-- One plan, with or without statistics: one look-up per row.
as $$
-- planner: indexed ordered nested once
declare
  _some_wait constant boolean := exists (select from event_store.quarantined_changes q where q.capture = v_table.capture);
  _some_purged constant boolean := exists (select from event_store.purged_streams);
  _now constant timestamptz := event_store_private.clock();
  _appended uuid[];
begin
  if exists (select from event_store_private.head_of_stream('[]', v_table.decider))
    or exists (select from event_store.quarantined_changes q where q.decider_id = '[]' and q.decider = v_table.decider)
  then
    return '{}';
  end if;
  begin
    with appended as (
      insert into event_store.events as e (
        event, event_id, event_version, decider, decider_id, data, command_id, final, created_at, "offset", version, metadata
      )
      select
        'backfilled', r.event_id, 1, v_table.decider, r.decider_id, r.data, v_command_id, false, _now,
        nextval('event_store.events_offset_seq'), 1, event_store_private.change_metadata(r.data)
      from (
        select g.decider_id, g.event_id, g.data::jsonb as data
        from unnest(v_decider_ids, v_event_ids, v_data, v_faults) with ordinality g(decider_id, event_id, data, fault, number)
        where g.fault is null
          -- "offset 0": one look-up per row, even if the plan was made for a store without events
          and not exists (
            select from event_store.events h where h.decider_id = g.decider_id and h.decider = v_table.decider offset 0
          )
          and not (
            _some_purged and exists (
              select from event_store.purged_streams p where p.decider_id = g.decider_id and p.decider = v_table.decider offset 0
            )
          )
          and not (
            _some_wait and exists (
              select from event_store.quarantined_changes q where q.decider_id = g.decider_id and q.decider = v_table.decider offset 0
            )
          )
        offset 0 -- each text is parsed once
      ) r
      where event_store_private.change_fault(
        null, 'backfilled', r.event_id, v_table.decider, r.decider_id, r.data, v_command_id
      ) is null
      returning e.event_id
    )
    select coalesce(array_agg(a.event_id), '{}') into _appended from appended a;
  exception when unique_violation or data_exception then
    -- two rows of one stream, an event stored elsewhere, or no JSON: nothing is appended
    return '{}';
  end;
  if pg_sequence_last_value('event_store.attended_seq') % 2 = 1 then -- a sequencer sleeps
    perform event_store_private.wake_sequencer();
  end if;
  return _appended;
end
$$;

comment on function event_store_private.append_new_rows(event_store.captured_tables, text[], uuid[], uuid, text[], text[]) is
'Appends rows of a captured table that have no event yet; returns the event_ids of the appended ones.';
