-- Example: select quarantine_id, decider, decider_id, fault from quarantined_changes('crm')
create or replace function event_store_platform.quarantined_changes(
  v_capture text,
  v_after bigint default 0,
  v_limit bigint default 100
)
returns setof event_store.quarantined_changes
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select event_store_private.refuse_request(format('v_limit is %s', v_limit), 'v_limit must be at least 1.')
  where v_limit <= 0;
  select q.*
  from event_store.quarantined_changes q
  where q.capture = v_capture and q.quarantine_id > v_after
  order by q.quarantine_id
  limit v_limit
$$;

comment on function event_store_platform.quarantined_changes(text, bigint, bigint) is
'Returns up to v_limit quarantined changes of capture v_capture with a quarantine_id above v_after, in order. fault '
'says why one cannot become an event; a change without a fault waits behind an earlier change of its stream. MR005 '
'v_limit is not positive.';
revoke all on function event_store_platform.quarantined_changes(text, bigint, bigint) from public;
grant execute on function event_store_platform.quarantined_changes(text, bigint, bigint)
to event_store_reader, event_store_owner;
