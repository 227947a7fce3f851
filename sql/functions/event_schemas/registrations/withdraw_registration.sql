-- Without its schema, data of any shape are appended until another schema is registered. Without its upcast, stored
-- data are read as before, and read models that the upcast affected are built anew. A withdrawn event belongs to the
-- role that registers it next.
-- Races: a drain cannot commit what it read with a withdrawn upcast. An append that is under way ends as it began: by
-- the schema, and also with a withdrawn event, which is then registered again.
-- Example: select withdraw_registration('order', 'order_placed', 2, 'upcast', 'these were cents already')
create or replace function event_store_platform.withdraw_registration(
  v_decider text,
  v_event text,
  v_event_version bigint,
  v_what text,
  v_reason text default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _gone jsonb;
  _fault text;
begin
  if v_what is null or v_what not in ('schema', 'upcast', 'event') then
    perform event_store_private.refuse_request(format('v_what is %L', v_what), 'It is schema, upcast or event.');
  end if;
  perform event_store_private.bound_idle_transaction();
  perform event_store_private.lock_deciders();
  _fault := case
    when exists (select from event_store.captured_tables c where c.decider = v_decider) then 'it belongs to a capture'
    when v_what = 'upcast' then (
      select 'it has an upcast to version ' || max(u.to_version)
      from event_store.event_upcasts u
      where u.decider = v_decider and u.event = v_event
      having max(u.to_version) > v_event_version
    )
    when v_what = 'event' and exists (
      select from event_store.event_schemas s where s.decider = v_decider and s.event = v_event and s.event_version = v_event_version
      union all
      select from event_store.event_upcasts u where u.decider = v_decider and u.event = v_event and u.to_version = v_event_version
    ) then 'it has a schema or an upcast'
    when v_what = 'event' and exists (
      select from event_store.events e where e.decider = v_decider and e.event = v_event and e.event_version = v_event_version
      union all
      select from event_store.purged_streams p where p.decider = v_decider
    ) then 'it has events, or some of its decider were purged'
  end;
  if _fault is not null then
    perform event_store_private.refuse_request(
      format('event %s version %s of decider %s: %s', v_event, v_event_version, v_decider, _fault),
      'Withdraw the upcast to the last version first, then others, then schemas. The event stays, if it has events.'
    );
  end if;
  perform set_config('event_store.registering', 'on', true);
  if v_what = 'schema' then
    delete from event_store.event_schemas s
    where s.decider = v_decider and s.event = v_event and s.event_version = v_event_version
    returning to_jsonb(s) - 'checks' into _gone;
    update event_store.deciders d set accepts = null, seals = false
    where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version and d.accepts is not null;
  elsif v_what = 'upcast' then
    delete from event_store.event_upcasts u
    where u.decider = v_decider and u.event = v_event and u.to_version = v_event_version
    returning to_jsonb(u) into _gone;
  else
    delete from event_store.deciders d
    where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version
    returning to_jsonb(d) into _gone;
  end if;
  perform set_config('event_store.registering', '', true);
  if _gone is not null then
    perform event_store_private.audit('withdraw_registration', null, v_reason, _gone || jsonb_build_object('what', v_what));
  end if;
  return _gone is not null;
end
$$;

comment on function event_store_platform.withdraw_registration(text, text, bigint, text, text) is
'Takes back the schema or the upcast of a version of an event, so that another one may be registered, or the event itself '
'where none is stored: v_what is schema, upcast or event. Returns whether there was one; audited with v_reason and what it '
'was. MR005 v_what is none of these, there is an upcast to a later version, or the event has events, a schema or an upcast, '
'or the decider belongs to a capture.';
revoke all on function event_store_platform.withdraw_registration(text, text, bigint, text, text) from public;
grant execute on function event_store_platform.withdraw_registration(text, text, bigint, text, text) to event_store_owner;
