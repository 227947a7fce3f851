-- Called last in the transaction: a caller that lost the lease stores nothing. Without new rows it records the progress
-- of an idle source. The commit is durable, whatever the session's synchronous_commit: the source drops stored changes.
-- Example: begin; copy event_store.wal_events (…) from stdin; select
--   store_changes('crm', 7, '0/16B4000', '2030-01-01 00:00:00+00'); commit;
create or replace function event_store_platform.store_changes(
  v_capture text,
  v_lease_token bigint,
  v_to_lsn pg_lsn,
  v_stored_at timestamptz
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
declare
  _capture event_store.captures;
  _last pg_lsn;
  _stored bigint;
begin
  if v_to_lsn is null or v_stored_at is null then
    perform event_store_private.refuse_request(
      format('v_to_lsn %L, v_stored_at %L', v_to_lsn, v_stored_at), 'Both are stated: up to where, and up to when, everything is stored.'
    );
  end if;
  perform event_store_private.commit_durably();
  _capture := event_store_private.require_lease_of_row(event_store_private.lock_capture_row(v_capture), v_lease_token);
  if _capture.source_generation is null then
    perform event_store_private.refuse_request(format('capture %L has no slot yet', v_capture), 'Make the slot and call begin_generation.');
  end if;
  select w.commit_lsn into _last
  from event_store.wal_events w
  where w.source_generation = _capture.source_generation
  order by w.commit_lsn desc, w.commit_idx desc
  limit 1;
  if _last >= greatest(v_to_lsn, _capture.stored_lsn) then
    perform event_store_private.refuse_request(
      format('capture %L: a change of %s is there, which v_to_lsn %s does not cover', v_capture, _last, v_to_lsn),
      'State the end of the last commit that was copied. Nothing was stored.'
    );
  end if;
  if _last >= _capture.stored_lsn then
    select count(*) into _stored
    from event_store.wal_events w
    where w.source_generation = _capture.source_generation and w.commit_lsn >= _capture.stored_lsn;
  end if;
  update event_store.captures
  set stored_lsn = greatest(stored_lsn, v_to_lsn), stored_at = greatest(stored_at, v_stored_at)
  where ctid = event_store_private.newest_capture(v_capture);
  return coalesce(_stored, 0);
end
$$;

comment on function event_store_platform.store_changes(text, bigint, pg_lsn, timestamptz) is
'Ends a transaction that copied changes into wal_events: all that the source committed below v_to_lsn, up to its time '
'v_stored_at, is now stored. Returns how many are new. It never moves back. MR005 an argument is null, or does not '
'cover the copied changes; MR011 the lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.store_changes(text, bigint, pg_lsn, timestamptz) from public;
grant execute on function event_store_platform.store_changes(text, bigint, pg_lsn, timestamptz) to event_store_owner;
