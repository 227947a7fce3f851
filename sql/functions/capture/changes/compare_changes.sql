-- The source sends changes again if its slot stood further back. A missing or different change shows that its log is
-- not the log that was read. A change that could not be read then and can be read now counts as the same; so does one
-- with values that were sealed with a key that is forgotten. An event_id tells no more than the position.
create or replace function event_store_platform.compare_changes(
  v_capture text,
  v_changes jsonb
)
returns bigint
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed nested once
declare
  _capture constant event_store.captures := event_store_private.known_capture(v_capture);
  _compared bigint;
  _differs text;
begin
  if jsonb_typeof(v_changes) is distinct from 'array' then
    perform event_store_private.refuse_request('v_changes must be a JSON array', 'Nothing was compared.');
  end if;
  begin
    with compared as (
      select c.commit_lsn, c.commit_idx, w.commit_lsn is null as missing, d.differ
      from jsonb_array_elements(v_changes) e(change)
      cross join lateral (
        select (e.change ->> 'commit_lsn')::pg_lsn as commit_lsn, (e.change ->> 'commit_idx')::bigint as commit_idx
      ) c
      left join event_store.wal_events w
        on w.source_generation = _capture.source_generation and w.commit_lsn = c.commit_lsn and w.commit_idx = c.commit_idx
      cross join lateral (
        select string_agg(k.what, ', ') as differ
        from (
          values
            ('xid', w.xid::text is distinct from e.change ->> 'xid'),
            ('decider', w.decider is distinct from e.change ->> 'decider'),
            ('decider_id', w.decider_id is distinct from e.change ->> 'decider_id' and w.decider_id is not null),
            ('action', w.action is distinct from e.change ->> 'action'),
            ('data', w.data is not null and event_store_private.is_same_data(w.data, e.change -> 'data') is not true)
        ) k(what, differs)
        where k.differs
      ) d
      where ((c.commit_lsn, c.commit_idx) <= (_capture.purged_lsn, _capture.purged_idx)) is not true
    )
    select
      count(*),
      (
        array_agg(
          case when missing then format('change %s of commit %s is not stored', commit_idx, commit_lsn)
          else format('change %s of commit %s is stored with another %s', commit_idx, commit_lsn, differ) end
          order by commit_lsn, commit_idx
        ) filter (where missing or differ is not null)
      )[1]
    into _compared, _differs
    from compared;
  exception when data_exception then
    perform event_store_private.refuse_request(sqlerrm, 'Nothing was compared.');
  end;
  if _differs is not null then
    raise exception 'the source gives other changes than those that are stored'
      using
        errcode = 'MR032',
        detail = format('capture %L, generation %s: %s', v_capture, _capture.source_generation, _differs),
        hint = 'The slot reads another history, of a source that was set back perhaps. Look at the source, then restart_capture.';
  end if;
  return _compared;
end
$$;

comment on function event_store_platform.compare_changes(text, jsonb) is
'Compares changes that the source sent again with the stored ones, stores nothing, and returns how many were '
'compared. v_changes is a JSON array of {commit_lsn, commit_idx, xid, decider, decider_id, action, data, fault}. '
'Purged changes are skipped. MR005 v_changes is malformed; MR030 unknown capture; MR032 a change is missing or '
'different.';
revoke all on function event_store_platform.compare_changes(text, jsonb) from public;
grant execute on function event_store_platform.compare_changes(text, jsonb) to event_store_owner;
