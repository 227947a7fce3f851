-- The shapes of an event of every writer's decider are set by the role that registered the event first.
-- Races: an append that is under way may still be stored.
-- Example: select set_decider_owner('order', 'order_team', 'the order service alone writes orders')
create or replace function event_store_platform.set_decider_owner(
  v_decider text,
  v_owner text,
  v_reason text default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _before text;
begin
  perform event_store_private.require_known_names(coalesce(v_decider, ''), null);
  if exists (select from event_store.captured_tables c where c.decider = v_decider) then
    perform event_store_private.refuse_captured_decider(v_decider);
  end if;
  -- a capture takes over deciders of event_store_owner, and earlier appends of writers as changes of its table
  if v_owner = 'event_store_owner' or v_owner is not null and to_regrole(quote_ident(v_owner)) is null then
    perform event_store_private.refuse_request(
      format('%I is no role that a decider is given to', v_owner),
      'Name a role that logins are members of, and not event_store_owner, or null for every writer.'
    );
  end if;
  perform event_store_private.bound_idle_transaction();
  perform event_store_private.lock_deciders();
  select d.owner into _before from event_store.deciders d where d.decider = v_decider limit 1;
  if _before is not distinct from v_owner then
    return false;
  end if;
  perform set_config('event_store.registering', 'on', true);
  update event_store.deciders set owner = v_owner where decider = v_decider;
  perform set_config('event_store.registering', '', true);
  perform event_store_private.audit(
    'set_decider_owner', null, v_reason, jsonb_build_object('decider', v_decider, 'owner', v_owner, 'before', _before)
  );
  return true;
end
$$;

comment on function event_store_platform.set_decider_owner(text, text, text) is
'Gives a decider to the role v_owner: only its members append to it and register its events, schemas and upcasts from '
'now on, or with null to every writer; returns whether that changed anything, which is audited with v_reason. MR004 unknown '
'decider; MR005 v_owner is no role, or event_store_owner; MR034 the decider belongs to a capture.';
revoke all on function event_store_platform.set_decider_owner(text, text, text) from public;
grant execute on function event_store_platform.set_decider_owner(text, text, text) to event_store_owner;
