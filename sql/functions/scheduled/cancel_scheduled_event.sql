-- Races: where it fires at this moment, this waits, and returns false.
-- Example: select cancel_scheduled_event('order', 'o-1', 'pay')
create or replace function event_store.cancel_scheduled_event(
  v_decider text,
  v_decider_id text,
  v_name text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.refuse_foreign_decider(v_decider, d.owner)
  from event_store.deciders d
  where d.decider = v_decider and d.owner is not null and not event_store_private.may_append(d.decider, d.owner)
  limit 1;
  update event_store.scheduled_events s
  set done_at = event_store_private.clock(), outcome = 'cancelled'
  where s.decider_id = v_decider_id and s.decider = v_decider and s.name = v_name and (s.done_at is null or s.outcome = 'refused');
  return found;
end
$$;

comment on function event_store.cancel_scheduled_event(text, text, text) is
'Takes back a scheduled event that waits or was refused; returns whether there was one. MR046 its decider belongs to another role.';
revoke all on function event_store.cancel_scheduled_event(text, text, text) from public;
grant execute on function event_store.cancel_scheduled_event(text, text, text) to event_store_writer, event_store_owner;
