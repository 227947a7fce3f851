-- Call it until it returns 0. A message with a deleted answer is still a duplicate, because the producer's high-water
-- mark decides. A different message under its number is no longer recognized (MR028). Abandoned messages keep their
-- reason. A message that is under way has its answer: v_before lies a day back.
-- Example: select purge_results(now() - interval '90 days', 'no source sends messages again after so long')
create or replace function event_store_platform.purge_results(
  v_before timestamptz,
  v_reason text,
  v_limit bigint default 100000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _purged bigint;
begin
  if (v_before <= event_store_private.clock() - interval '1 day' and v_limit > 0 and octet_length(v_reason) between 1 and 10000) is not true then
    perform event_store_private.refuse_request(
      format('v_before %s, v_limit %s', coalesce(v_before::text, 'null'), coalesce(v_limit::text, 'null')),
      'v_before lies a day back at least, v_limit is at least 1, and v_reason says why, in 10000 bytes at most.'
    );
  end if;
  with purged as (
    delete from event_store.producer_results r
    where r.ctid = any (
      array(
        select o.ctid from event_store.producer_results o
        where o.ended_at < v_before and o.outcome = 'committed'
        limit v_limit
        for update skip locked
      )
    )
    returning 1
  )
  select count(*) into _purged from purged;
  if _purged > 0 then
    perform event_store_private.audit('purge_results', null, v_reason, jsonb_build_object('before', v_before, 'results', _purged));
  end if;
  return _purged;
end
$$;

comment on function event_store_platform.purge_results(timestamptz, text, bigint) is
'Deletes at most v_limit answers to messages that were committed before v_before, a day back at least, and returns '
'how many. Such a message is still a duplicate: committed, its result and offsets null. Audited. MR005 an argument is '
'null or out of range.';
revoke all on function event_store_platform.purge_results(timestamptz, text, bigint) from public;
grant execute on function event_store_platform.purge_results(timestamptz, text, bigint) to event_store_owner;
