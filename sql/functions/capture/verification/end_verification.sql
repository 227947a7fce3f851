-- If the key of any row could not be read, no row counts as gone. A repair ends streams with deleted, as
-- finish_backfill does, and gives up quarantined changes that are older than the verification: of such streams, of rows
-- with a key that could not be read, and of truncations. examples are up to twenty keys of gone rows, quarantined are
-- the changes of the table that wait in the quarantine in the end.
-- Example: select * from end_verification(4711, true)
create or replace function event_store_platform.end_verification(
  v_verification bigint,
  v_whole boolean,
  v_limit bigint default 5000
)
returns table (
  done boolean,
  gone bigint,
  quarantined bigint,
  examples text[]
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
declare
  _verification event_store.verifications;
  _capture event_store.captures;
  _table event_store.captured_tables;
  _key text;
  _looked_at bigint;
begin
  if v_whole is null or (v_limit between 1 and 100000) is not true then
    perform event_store_private.refuse_request(
      format('v_whole %L, v_limit %L', v_whole, v_limit), 'v_whole is stated; v_limit is 1 to 100000.'
    );
  end if;
  _verification := event_store_private.current_verification(v_verification);
  _capture := event_store_private.known_capture(_verification.capture);
  _table := event_store_private.read_table(_verification);
  gone := 0;
  if v_whole and _verification.repairs and _verification.finishing_key is null then
    -- Rows read replaced their own changes, and cover the unreadable ones. A stream with a newer change keeps all.
    perform event_store_private.supersede_changes(
      _table,
      array(
        select q.quarantine_id
        from event_store.quarantined_changes q
        where q.capture = _table.capture and q.decider = _table.decider
          and event_store_private.is_before_verification(q, _table)
          and not exists (
            select from event_store.unchanged_rows u where u.backfill_offset = v_verification and u.decider_id = q.decider_id
          )
          and not exists (
            select from event_store.quarantined_changes n
            where n.decider_id = q.decider_id and n.decider = q.decider and not event_store_private.is_before_verification(n, _table)
          )
      )
    );
  end if;
  if v_whole then
    select
      count(*), max(s.decider_id collate "C"), count(*) filter (where s.gone),
      (array_agg(s.decider_id order by s.decider_id collate "C") filter (where s.gone))[1:20]
    into _looked_at, _key, gone, examples
    from event_store_private.streams_without_rows(
      _capture, _table.decider, _table, coalesce(_verification.finishing_key, ''), v_limit
    ) s;
    if _verification.repairs and gone > 0 then
      perform event_store_private.emit_deletions(_capture, _table.decider, _table, coalesce(_verification.finishing_key, ''), v_limit);
    end if;
    if _looked_at < v_limit then
      _key := null;
    end if;
  end if;
  done := _key is null;
  if not done then
    delete from event_store.unchanged_rows u where u.backfill_offset = v_verification and u.decider_id <= _key and u.decider_id <> '';
    update event_store.verifications set finishing_key = _key where backfill_offset = v_verification;
    return next;
    return;
  end if;
  delete from event_store.verifications where backfill_offset = v_verification; -- with its findings
  select count(*) into quarantined
  from event_store.quarantined_changes q
  where q.capture = _table.capture and q.decider = _table.decider;
  return next;
end
$$;

comment on function event_store_platform.end_verification(bigint, boolean, bigint) is
'Ends a verification, v_limit streams a call, until it is done. v_whole: every row was read, so live streams not '
'found have lost their rows; a repair ends these. MR005 an argument is out of range; MR049 the verification is over.';
revoke all on function event_store_platform.end_verification(bigint, boolean, bigint) from public;
grant execute on function event_store_platform.end_verification(bigint, boolean, bigint) to event_store_owner;
