-- The quarantine has its own copy of a quarantined change. If there is nothing to remove, it writes nothing.
-- compare_changes skips removed changes.
-- Example: select purge_wal_events('crm', now() - interval '7 days')
create or replace function event_store_platform.purge_wal_events(
  v_capture text,
  v_before timestamptz,
  v_limit bigint default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed nested once
declare
  _capture event_store.captures;
  _generation int;
  _purged bigint := 0;
  _last record;
begin
  if v_before is null or (v_limit between 1 and 1000000) is not true then
    perform event_store_private.refuse_request(
      format('v_before %L, v_limit %s', v_before, coalesce(v_limit::text, 'null')), 'Both are stated; the limit is 1 to 1000000.'
    );
  end if;
  -- A lock writes. The oldest change is the first to go.
  _capture := event_store_private.known_capture(v_capture);
  if not exists (
    select from event_store.source_generations g
    cross join lateral (
      select w.commit_lsn, w.commit_idx, w.stored_at
      from event_store.wal_events w
      where w.source_generation = g.source_generation
      order by w.commit_lsn, w.commit_idx
      limit 1
    ) oldest
    where g.capture = v_capture
      and oldest.stored_at < v_before
      and (
        g.source_generation < _capture.source_generation
        or (oldest.commit_lsn, oldest.commit_idx) <= (_capture.emitted_lsn, _capture.emitted_idx)
      )
  ) then
    return 0;
  end if;
  _capture := event_store_private.lock_capture(v_capture);
  for _generation in
    select g.source_generation from event_store.source_generations g where g.capture = v_capture order by g.source_generation
  loop
    with oldest as materialized (
      select w.commit_lsn, w.commit_idx, w.stored_at
      from event_store.wal_events w
      where w.source_generation = _generation
        and (
          _generation < _capture.source_generation
          or (w.commit_lsn, w.commit_idx) <= (_capture.emitted_lsn, _capture.emitted_idx)
        )
      order by w.commit_lsn, w.commit_idx
      limit v_limit - _purged
    ), purged as (
      delete from event_store.wal_events w
      using (
        -- a clock that was set back leaves no hole
        select *, max(stored_at) over (order by commit_lsn, commit_idx rows unbounded preceding) as newest from oldest
      ) o
      where w.source_generation = _generation and w.commit_lsn = o.commit_lsn and w.commit_idx = o.commit_idx and o.newest < v_before
      returning w.commit_lsn, w.commit_idx
    )
    select count(*) as purged, (array_agg(p.commit_lsn order by p.commit_lsn desc, p.commit_idx desc))[1] as commit_lsn,
      (array_agg(p.commit_idx order by p.commit_lsn desc, p.commit_idx desc))[1] as commit_idx
    into _last
    from purged p;
    if _last.purged > 0 and _generation = _capture.source_generation then
      update event_store.captures set purged_lsn = _last.commit_lsn, purged_idx = _last.commit_idx
      where ctid = event_store_private.newest_capture(v_capture);
    end if;
    _purged := _purged + _last.purged;
    exit when _purged >= v_limit;
  end loop;
  return _purged;
end
$$;

comment on function event_store_platform.purge_wal_events(text, timestamptz, bigint) is
'Removes stored changes that are events or quarantined and were stored before v_before, the oldest first, at most '
'v_limit, and returns how many. Their events stay. MR005 an argument is null or out of range; MR030 unknown capture.';
revoke all on function event_store_platform.purge_wal_events(text, timestamptz, bigint) from public;
grant execute on function event_store_platform.purge_wal_events(text, timestamptz, bigint) to event_store_owner;
