-- A version is taken only once while its event is there. But a writer with a snapshot older than an append and its
-- purge would take the same version again. Only writers that may have such a snapshot call this: a purge began beside
-- their statement (purge_seq), or their transaction has one snapshot for all of its statements.
--
-- A purge changes the row of its log partition, with the strength of FOR UPDATE: then a transaction with one snapshot
-- cannot lock that row, and no purge passes such a lock. With a new snapshot for each statement, purged_streams shows
-- the purge.
create or replace function event_store_private.require_unpurged(
  v_event_ids uuid[]
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform event_store_private.hold_off_purges(array(select e.decider_id from event_store.events e where e.event_id = any (v_event_ids)));
  end if;
  if exists (
    select from event_store.events e
    join event_store.purged_streams p using (decider_id, decider)
    where e.event_id = any (v_event_ids) and p.version >= e.version
  ) then
    raise exception 'events of the stream were purged by a transaction that this one cannot see'
      using errcode = 'serialization_failure', hint = 'Repeat the transaction.';
  end if;
end
$$;

comment on function event_store_private.require_unpurged(uuid[]) is
'Refuses events that were just stored where their versions are purged already: 40001.';
