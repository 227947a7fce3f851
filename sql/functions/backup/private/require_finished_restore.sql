-- It runs at the end of a transaction that called begin_restore. So neither unchecked rows nor the right to load them
-- outlast the transaction.
create or replace function event_store_private.require_finished_restore()
returns trigger
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if (select sequenced_at from event_store.sequencer) = 'infinity' then
    perform event_store_private.refuse_request(
      'a restore has begun and is not finished', 'Call finish_restore in the transaction of begin_restore, or roll it back.'
    );
  end if;
  return null;
end
$$;

comment on function event_store_private.require_finished_restore() is
'Trigger: refuses to commit a restore that is not finished. MR005.';

do $trigger$
begin
  -- Only once: making it again would wait for every session that sequences, and there is no `create or replace` for it.
  if not exists (
    select from pg_trigger where tgrelid = 'event_store.sequencer'::regclass and tgname = 'require_finished_restore'
  ) then
    create constraint trigger require_finished_restore
    after update on event_store.sequencer
    deferrable initially deferred
    for each row
    when (new.sequenced_at = 'infinity')
    execute function event_store_private.require_finished_restore();
  end if;
end
$trigger$;

comment on trigger require_finished_restore on event_store.sequencer is
'Refuses to commit a transaction that called begin_restore without finish_restore.';
