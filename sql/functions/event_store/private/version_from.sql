-- Without such an event it is the version of the next one, and null if the stream has no events. Offsets and positions
-- follow versions, so it is bisected: for a stream of a million events 20 are read.
create or replace function event_store_private.version_from(
  v_decider text,
  v_decider_id text,
  v_offset bigint default null,
  v_position bigint default null
)
returns bigint
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
declare
  -- not min and max: they would read all events of a stream that looks short
  _from bigint := (
    select e.version from event_store.events e where e.decider_id = v_decider_id and e.decider = v_decider order by e.version limit 1
  );
  _to bigint := 1 + (
    select e.version from event_store.events e where e.decider_id = v_decider_id and e.decider = v_decider order by e.version desc limit 1
  );
  _middle bigint;
begin
  while _from < _to loop
    _middle := (_from + _to) / 2;
    if (
      select coalesce(
        e."offset" >= v_offset,
        (select l.position from event_store.event_log l where l."offset" = e."offset") >= v_position,
        true -- it has no position yet
      )
      from event_store.events e
      where e.decider_id = v_decider_id and e.decider = v_decider and e.version = _middle
    ) then
      _to := _middle;
    else
      _from := _middle + 1;
    end if;
  end loop;
  return _from;
end
$$;

comment on function event_store_private.version_from(text, text, bigint, bigint) is
'The version of the first event of a stream from v_offset, or from v_position of its log partition, on.';
