-- To other sessions that transaction is in progress. Counted as done, it would hide what the caller appends later.
create or replace function event_store_private.committed_snapshot()
returns pg_snapshot
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now constant pg_snapshot := pg_current_snapshot();
  _own constant xid8 := pg_current_xact_id_if_assigned();
begin
  if _own >= pg_snapshot_xmin(_now) and _own < pg_snapshot_xmax(_now) then
    return format(
      '%s:%s:%s',
      pg_snapshot_xmin(_now),
      pg_snapshot_xmax(_now),
      (select string_agg(x::text, ',' order by x) from (select pg_snapshot_xip(_now) union select _own) in_progress(x))
    );
  end if;
  return _now;
end
$$;

comment on function event_store_private.committed_snapshot() is
'What is committed now: pg_current_snapshot() with the caller''s own transaction counted as in progress.';
