-- One transaction makes the events and moves the capture behind them. A change with a fault, a change over the size
-- limits of append_event, and a change of a closed stream cannot become events; they wait until requeue_changes or
-- discard_change. A TRUNCATE becomes truncated in the stream [] of the table, then deleted in each live stream; that
-- may take several calls. If every stored change is an event already, it writes nothing.
-- Example: select * from emit_changes('crm', 7)
create or replace function event_store_platform.emit_changes(
  v_capture text,
  v_lease_token bigint,
  v_limit bigint default 10000
)
returns table (
  emitted bigint,
  quarantined bigint,
  held bigint,
  behind boolean
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
  _left bigint := v_limit;
  _range record;
  _truncate record;
begin
  if (v_limit between 1 and 100000) is not true then
    perform event_store_private.refuse_request(format('v_limit is %s', coalesce(v_limit::text, 'null')), 'It is 1 to 100000.');
  end if;
  emitted := 0;
  quarantined := 0;
  held := 0;
  -- A lock writes, and an idle capture must not write.
  _capture := event_store_private.known_capture(v_capture);
  behind := event_store_private.has_unemitted_changes(_capture);
  if not behind and _capture.lease_owner is not null and _capture.lease_token = v_lease_token then
    return next;
    return;
  end if;
  -- The row is locked only at the end: storing changes meanwhile need not wait.
  perform from event_store.capture_names where capture = v_capture for no key update;
  _capture := event_store_private.require_lease_of_row(event_store_private.known_capture(v_capture), v_lease_token);
  behind := event_store_private.has_unemitted_changes(_capture);
  while behind and _left > 0 loop
    begin
      select p.changes, 0::bigint as quarantined, 0::bigint as held, p.to_lsn, p.to_idx into _range
      from event_store_private.emit_plain_range(_capture, _left) p;
      if _range.changes is null then
        select * into _range from event_store_private.emit_range(_capture, _left, false);
      end if;
    exception when unique_violation or sqlstate 'MR002' or sqlstate 'MR003' or sqlstate 'MR004' then
      select * into _range from event_store_private.emit_range(_capture, _left, true);
    end;
    if _range.changes > 0 then
      emitted := emitted + _range.changes - _range.quarantined - _range.held;
      quarantined := quarantined + _range.quarantined;
      held := held + _range.held;
      _left := _left - _range.changes;
      _capture.emitted_lsn := _range.to_lsn;
      _capture.emitted_idx := _range.to_idx;
    else
      select * into _truncate from event_store_private.emit_truncate(_capture, _left);
      emitted := emitted + _truncate.emitted;
      quarantined := quarantined + _truncate.quarantined;
      held := held + _truncate.held;
      _left := _left - greatest(1, _truncate.looked_at);
      _capture.truncating_key := _truncate.to_key;
      if _truncate.to_key is null then
        _capture.emitted_lsn := _truncate.to_lsn;
        _capture.emitted_idx := _truncate.to_idx;
      end if;
    end if;
    behind := event_store_private.has_unemitted_changes(_capture);
  end loop;
  perform event_store_private.lock_capture_row(v_capture);
  update event_store.captures
  set emitted_lsn = _capture.emitted_lsn, emitted_idx = _capture.emitted_idx, truncating_key = _capture.truncating_key
  where ctid = event_store_private.newest_capture(v_capture);
  return next;
end
$$;

comment on function event_store_platform.emit_changes(text, bigint, bigint) is
'Turns about v_limit stored changes into events, in the order of the source''s commits. A change that cannot become '
'an event is quarantined, with every later one of its stream; all other streams continue. Returns how many became '
'events, failed, or wait behind a failed one, and whether more is stored. MR005 v_limit is out of range; MR011 the '
'lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.emit_changes(text, bigint, bigint) from public;
grant execute on function event_store_platform.emit_changes(text, bigint, bigint) to event_store_owner;
