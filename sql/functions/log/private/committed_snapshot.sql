-- The current snapshot with the caller's own transaction counted as in progress, as it is for everybody else:
-- otherwise what the caller appends after this call would pass for already seen.
create or replace function event_store_private.committed_snapshot()
returns pg_snapshot
language sql
volatile
as $$
  select case
    when own >= pg_snapshot_xmin(now_) and own < pg_snapshot_xmax(now_) then
      format(
        '%s:%s:%s',
        pg_snapshot_xmin(now_),
        pg_snapshot_xmax(now_),
        (select string_agg(x::text, ',' order by x) from (select pg_snapshot_xip(now_) union select own) in_progress(x))
      )::pg_snapshot
    else now_
  end
  from (select pg_current_snapshot(), pg_current_xact_id_if_assigned()) current(now_, own)
$$;

comment on function event_store_private.committed_snapshot() is
'What is committed now: pg_current_snapshot() with the caller''s own transaction counted as in progress.';
