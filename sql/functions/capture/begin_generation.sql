-- Everything up to v_start_lsn counts as stored and emitted. A table without key columns is not backfilled. Unless a
-- gap is open, this records one if the capture had another slot before. v_timelines is as follow_timelines takes it.
-- Example: select begin_generation('crm', 7, '7212345678901234567', 'crm', '0/16B3748', '742', '1')
create or replace function event_store_platform.begin_generation(
  v_capture text,
  v_lease_token bigint,
  v_system_identifier text,
  v_database text,
  v_start_lsn pg_lsn,
  v_published_xid xid8,
  v_timelines text
)
returns int
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
  _now timestamptz;
  _generation int;
  _before int;
begin
  if coalesce(v_system_identifier, '') = '' or coalesce(v_database, '') = '' or v_start_lsn is null or v_published_xid is null
    or (v_timelines ~ '^([1-9][0-9]* [0-9A-F]{1,8}/[0-9A-F]{1,8}, )*[1-9][0-9]*$') is not true
  then
    perform event_store_private.refuse_request(
      format(
        'v_system_identifier %L, v_database %L, v_start_lsn %L, v_published_xid %L, v_timelines %L',
        v_system_identifier, v_database, v_start_lsn, v_published_xid, v_timelines
      ),
      'All of them are stated: what the source says when the slot is made.'
    );
  end if;
  perform event_store_private.commit_durably();
  _capture := event_store_private.require_capture_lease(v_capture, v_lease_token);
  if event_store_private.has_unemitted_changes(_capture) then
    raise exception 'stored changes are not emitted'
      using
        errcode = 'MR036',
        detail = format(
          'capture %L, generation %s: stored up to %s, emitted up to %s', v_capture, _capture.source_generation, _capture.stored_lsn,
          _capture.emitted_lsn
        ),
        hint = 'Call emit_changes until nothing is behind, then this again.';
  end if;
  _now := event_store_private.clock();
  -- Numbers are drawn one after the other, even by captures that begin at once.
  lock table event_store.source_generations in share row exclusive mode;
  select coalesce(max(g.source_generation), 0) + 1, max(g.source_generation) filter (where g.capture = v_capture)
  into _generation, _before
  from event_store.source_generations g;
  insert into event_store.source_generations (source_generation, capture, system_identifier, database, slot, start_lsn, began_at)
  values (_generation, v_capture, v_system_identifier, v_database, _capture.slot, v_start_lsn, _now);
  if _before is not null then
    insert into event_store.capture_gaps (capture, source_generation, from_lsn, to_lsn, reason, detected_at)
    values (v_capture, _before, _capture.stored_lsn, null, 'A new slot was made.', _now)
    on conflict (capture) where resolved_by_generation is null do nothing;
  end if;
  update event_store.capture_gaps set resolved_by_generation = _generation
  where capture = v_capture and resolved_by_generation is null;
  update event_store.captures
  set
    source_generation = _generation, stored_lsn = v_start_lsn, stored_at = null, emitted_lsn = v_start_lsn, emitted_idx = -1,
    purged_lsn = null, purged_idx = null, truncating_key = null, timelines = v_timelines
  where ctid = event_store_private.newest_capture(v_capture);
  update event_store.captured_tables t
  set
    published_xid = case when t.stopped_reason is null then v_published_xid end, backfill_offset = nextval('event_store.events_offset_seq'),
    backfill_key = null, backfilled_rows = 0, unchanged_rows = 0, gone_rows = 0, finishing_key = null,
    is_new = t.is_new and _before is null,
    -- a table without key columns has no rows to read
    rows_read = coalesce(t.key_columns = '{}', false),
    backfill_generation = case when t.key_columns = '{}' then _generation end
  where t.capture = v_capture;
  return _generation;
end
$$;

comment on function event_store_platform.begin_generation(text, bigint, text, text, pg_lsn, xid8, text) is
'Begins to read a fresh slot, which gives every change from v_start_lsn on, and returns the generation''s number. '
'Every table is backfilled again, in snapshots that see all transactions older than v_published_xid, and an open gap '
'ends. v_system_identifier and v_database identify the source, v_timelines the history of its log. MR005 an argument '
'is null, empty or malformed; MR011 the lease v_lease_token is lost; MR030 unknown capture; MR036 stored changes are '
'not emitted.';
revoke all on function event_store_platform.begin_generation(text, bigint, text, text, pg_lsn, xid8, text) from public;
grant execute on function event_store_platform.begin_generation(text, bigint, text, text, pg_lsn, xid8, text) to event_store_owner;
