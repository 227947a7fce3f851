-- It returns v_common_lsn if the former source continued beyond it with nothing that is stored here. If it returns
-- null, record_gap is due. Call it when the source's history differs from the capture's (claim_capture), before
-- anything of the source is stored: the next comparison uses the history that is kept here.
-- Example: select follow_timelines('crm', 7, '1 0/3000000, 2', '0/3000000')
create or replace function event_store_platform.follow_timelines(
  v_capture text,
  v_lease_token bigint,
  v_timelines text,
  v_common_lsn pg_lsn
)
returns pg_lsn
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
declare
  _capture event_store.captures;
  _last pg_lsn;
  _stored pg_lsn;
begin
  if (v_timelines ~ '^([1-9][0-9]* [0-9A-F]{1,8}/[0-9A-F]{1,8}, )*[1-9][0-9]*$') is not true then
    perform event_store_private.refuse_request(
      format('v_timelines is %L', v_timelines),
      'State each timeline of the source''s log with the position where it was left, then the present one: 1 0/3000000, 2.'
    );
  end if;
  _capture := event_store_private.require_capture_lease(v_capture, v_lease_token);
  if _capture.source_generation is null then
    perform event_store_private.refuse_request(format('capture %L has no slot yet', v_capture), 'Make the slot and call begin_generation.');
  elsif v_common_lsn is null and _capture.timelines is not null then
    perform event_store_private.refuse_request(
      format('capture %L followed timelines %s, and v_common_lsn is null', v_capture, _capture.timelines),
      'State up to where the histories agree.'
    );
  end if;
  _stored := _capture.stored_lsn;
  if v_common_lsn < _stored then
    select w.commit_lsn into _last
    from event_store.wal_events w
    where w.source_generation = _capture.source_generation
    order by w.commit_lsn desc, w.commit_idx desc
    limit 1;
    -- A commit that begins before the switch is whole before it. The slot itself may be younger than the switch.
    if greatest(_last, _capture.purged_lsn) >= v_common_lsn or v_common_lsn < (
      select g.start_lsn from event_store.source_generations g where g.source_generation = _capture.source_generation
    ) then
      return null;
    end if;
    _stored := v_common_lsn;
  end if;
  update event_store.captures set timelines = v_timelines, stored_lsn = _stored
  where ctid = event_store_private.newest_capture(v_capture);
  return _stored;
end
$$;

comment on function event_store_platform.follow_timelines(text, bigint, text, pg_lsn) is
'Records the timelines of a source''s log (v_timelines, such as 1 0/3000000, 2) and up to where it equals the log '
'captured before (v_common_lsn; null if that log is unknown). Returns up to where the source is stored; null, with '
'nothing changed, if changes are stored that it does not have. MR005 an argument is malformed, or v_common_lsn is '
'null though the timelines are known; MR011 the lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.follow_timelines(text, bigint, text, pg_lsn) from public;
grant execute on function event_store_platform.follow_timelines(text, bigint, text, pg_lsn) to event_store_owner;
