-- Late answers get MR016. Locks that an open transaction holds are left out.
-- Example: select end_locks('invoices', 'order', 'o-1', 'its consumer hangs')
create or replace function event_store_platform.end_locks(
  v_view text,
  v_decider text default null,
  v_decider_id text default null,
  v_reason text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _ended bigint;
begin
  if v_decider is null and v_decider_id is not null then
    perform event_store_private.refuse_request('v_decider_id without v_decider', 'A stream is a decider and a decider_id.');
  end if;
  perform event_store_private.own_view(v_view, 'rows');
  update event_store.stream_locks k
  set
    attempts = greatest(k.attempts - (k.in_flight is not null)::int, 0), in_flight = null, locked_until = _now, updated_at = _now,
    revision = k.revision + 1
  where k.ctid = any (
    array(
      select h.ctid from event_store.stream_locks h
      where h.view = v_view and h.parked_at is null and h.locked_until > _now
        and (v_decider is null or h.decider = v_decider)
        and (v_decider_id is null or h.decider_id = v_decider_id)
      for update skip locked
    )
  );
  get diagnostics _ended = row_count;
  if _ended > 0 then
    perform event_store_private.audit(
      'end_locks', v_view, v_reason, jsonb_build_object('decider', v_decider, 'decider_id', v_decider_id, 'locks', _ended)
    );
  end if;
  return _ended;
end
$$;

comment on function event_store_platform.end_locks(text, text, text, text) is
'Ends the locks in force of a rows view, of v_decider and v_decider_id or of all (null), and returns how many. Events '
'in flight are delivered again at once; a waiting retry is due at once. It counts no failed attempt and refuses late '
'answers. Audited with v_reason. MR005 v_decider_id without v_decider; MR010 unknown view; MR012 a bulk view.';
revoke all on function event_store_platform.end_locks(text, text, text, text) from public;
grant execute on function event_store_platform.end_locks(text, text, text, text) to event_store_owner;
