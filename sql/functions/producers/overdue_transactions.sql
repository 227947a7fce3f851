-- The oldest come first, up to v_limit. There are none if expire_transactions is called every minute, as millrace run
-- sequencer does, unless a session holds the row of their producer: then its messages also wait. A standby does not
-- have them, and returns none.
-- Example: select * from overdue_transactions()
create or replace function event_store_platform.overdue_transactions(
  v_late_s bigint default 120,
  v_limit int default 100
)
returns table (
  producer_id text,
  partition int,
  transaction_id uuid,
  sequence bigint,
  begun_at timestamptz,
  expires_at timestamptz
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  if (v_late_s between 0 and 2147483647 and v_limit > 0) is not true then
    perform event_store_private.refuse_request(
      format('v_late_s is %s, v_limit is %s', coalesce(v_late_s::text, 'null'), coalesce(v_limit::text, 'null')),
      'v_late_s is 0 to 2147483647, v_limit at least 1.'
    );
  end if;
  if pg_is_in_recovery() then
    return;
  end if;
  return query
  select t.producer_id, t.partition, t.transaction_id, t.sequence, t.begun_at, t.expires_at
  from event_store.transactions t
  where t.expires_at <= event_store_private.clock() - make_interval(secs => v_late_s)
  order by t.expires_at, t.transaction_id
  limit v_limit;
end
$$;

comment on function event_store_platform.overdue_transactions(bigint, int) is
'Returns the open transactions of producers with a deadline at least v_late_s ago: no process ends them, because no '
'sequencer runs or because a session holds the row of their producer. MR005 an argument is out of range.';
revoke all on function event_store_platform.overdue_transactions(bigint, int) from public;
grant execute on function event_store_platform.overdue_transactions(bigint, int)
to event_store_consumer, event_store_reader, event_store_owner;
