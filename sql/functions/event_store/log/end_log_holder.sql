-- The setting of bound_idle_transaction would end an idle session, but the session may set it back. A running sequencer
-- calls this. The holder's transaction is rolled back, and the events that it sequenced are sequenced again.
-- The role that migrated may not end a superuser's session. To end another role's session it must be a member of
-- pg_signal_backend.
-- Example: select pid, login from end_log_holder('the importer hangs')
create or replace function event_store_platform.end_log_holder(
  v_reason text default null
)
returns table (
  pid integer,
  login text,
  application_name text,
  transaction_id text,
  open_since timestamptz
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _holder record;
begin
  for _holder in
    select a.pid, a.usename::text as login, a.application_name, a.backend_xid::text as transaction_id, a.xact_start as open_since
    from pg_stat_activity a
    left join event_store_platform.sequencer_holder() h on h.pid = a.pid
    where (h.pid is not null and v_reason is not null and event_store_private.is_operator())
      or (
        a.state = 'idle in transaction' and a.state_change < event_store_private.clock() - interval '10 seconds'
        and (
          h.pid is not null or a.pid in (
            select l.pid
            from pg_locks l
            join pg_database d on d.oid = l.database and d.datname = current_database()
            where l.relation = 'event_store.model_locks'::regclass and l.mode = 'RowShareLock'
          )
        )
      )
  loop
    begin
      if pg_terminate_backend(_holder.pid) then
        perform event_store_private.audit('end_log_holder', null, v_reason, to_jsonb(_holder));
        return query select _holder.pid, _holder.login, _holder.application_name, _holder.transaction_id, _holder.open_since;
      end if;
    exception when insufficient_privilege then
      null;
    end;
  end loop;
end
$$;

comment on function event_store_platform.end_log_holder(text) is
'Ends the session with a transaction that holds up the whole log, or others'' producers, views or registrations, and returns '
'it: one that has idled in it for ten seconds, or any that holds the log if an operator states v_reason. A session that '
'the role that migrated may not end is left. Audited.';
revoke all on function event_store_platform.end_log_holder(text) from public;
grant execute on function event_store_platform.end_log_holder(text) to event_store_consumer, event_store_owner;
