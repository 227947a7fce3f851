-- A new token also fences an earlier instance of the same owner. timelines is the last known history of the source's
-- log (follow_timelines). gap: changes of the source are lost, or an operator asked for a new start.
-- Example: select lease_token, slot, stored_lsn from claim_capture('crm', 'run-1')
create or replace function event_store_platform.claim_capture(
  v_capture text,
  v_owner text,
  v_lease_s bigint default 30
)
returns table (
  capture text,
  lease_token bigint,
  leased_until timestamptz,
  source_generation int,
  system_identifier text,
  database text,
  slot text,
  publication text,
  stored_lsn pg_lsn,
  stored_at timestamptz,
  emitted_lsn pg_lsn,
  emitted_idx bigint,
  gap boolean,
  timelines text
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- do not wait for a process that hangs in its transaction
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  _now timestamptz;
  _lease constant interval := event_store_private.capture_lease_duration(v_lease_s);
  _capture event_store.captures;
begin
  if coalesce(v_owner, '') = '' then
    perform event_store_private.refuse_request(format('v_owner is %L', v_owner), 'An owner is named: the id of a run, say.');
  end if;
  begin
    _capture := event_store_private.lock_capture(v_capture);
  exception when lock_not_available then
    raise exception 'capture is in use'
      using
        errcode = 'MR031',
        detail = format('a transaction of another session works on capture %L since 5 s or more', v_capture),
        hint = 'Try again when it has ended. To find it: select * from pg_stat_activity order by xact_start.';
  end;
  _now := event_store_private.clock();
  if _capture.leased_until > _now and _capture.lease_owner <> v_owner then
    raise exception 'capture is in use'
      using
        errcode = 'MR031',
        detail = format('capture %L is leased by %s until %s', v_capture, _capture.lease_owner, _capture.leased_until),
        hint = 'Try again when the lease is given back or has expired.';
  end if;
  if event_store_private.are_sequences_behind() then
    perform event_store_private.advance_sequences();
  end if;
  update event_store.captures c
  set lease_owner = v_owner, lease_token = nextval('event_store.lease_token_seq'), leased_until = _now + _lease
  where c.ctid = event_store_private.newest_capture(v_capture)
  returning * into _capture;
  return query
  select
    _capture.capture, _capture.lease_token, _capture.leased_until, _capture.source_generation, g.system_identifier, g.database,
    _capture.slot, _capture.publication, _capture.stored_lsn, _capture.stored_at, _capture.emitted_lsn, _capture.emitted_idx,
    exists (select from event_store.capture_gaps p where p.capture = v_capture and p.resolved_by_generation is null),
    _capture.timelines
  from (select) one
  left join event_store.source_generations g on g.source_generation = _capture.source_generation;
end
$$;

comment on function event_store_platform.claim_capture(text, text, bigint) is
'Leases a capture to v_owner for v_lease_s and returns all that it needs to continue. The same owner may claim again '
'and gets a new token. gap says that a new slot and begin_generation are due. MR005 v_owner is empty, or v_lease_s is '
'out of range; MR030 unknown capture; MR031 another owner holds its lease.';
revoke all on function event_store_platform.claim_capture(text, text, bigint) from public;
grant execute on function event_store_platform.claim_capture(text, text, bigint) to event_store_owner;
