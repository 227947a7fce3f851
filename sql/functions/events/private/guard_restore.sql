-- The guard of events that a restore loads: with transaction_id 3, which no append has, they pass as they are while
-- begin_restore's transaction is under way, and are refused otherwise. What begin_restore writes into the sequencer's row
-- is seen by that transaction alone, and never committed (require_finished_restore): nothing else can pretend it.
create or replace function event_store_private.guard_restore()
returns trigger
language plpgsql
security definer
set search_path = event_store, pg_temp
as $$
begin
  if (select sequenced_at from event_store.sequencer) <> 'infinity' then
    perform event_store_private.refuse_request(
      'transaction_id is 3, and no restore has begun in this transaction',
      'Leave transaction_id out, or call begin_restore first.'
    );
  end if;
  return new;
end
$$;

comment on function event_store_private.guard_restore() is
'Trigger: lets events of a restore pass, in the transaction of begin_restore only. MR005.';

create or replace trigger guard_restore
before insert on event_store.events
for each row
when (new.transaction_id = '3'::xid8)
execute function event_store_private.guard_restore();

comment on trigger guard_restore on event_store.events is 'Lets nobody but a restore store events as they are.';
