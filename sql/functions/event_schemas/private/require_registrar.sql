-- Members of the decider's owner may register, or, without an owner, of the role that registered the event first, and
-- operators. The right to append does not suffice: upcasts change how all events of a decider are read, and schemas
-- judge all appends.
create or replace function event_store_private.require_registrar(
  v_decider text,
  v_event text
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _registrar text;
begin
  select coalesce(d.owner, d.registered_by) into _registrar
  from event_store.deciders d
  where d.decider = v_decider and d.event = v_event
  limit 1;
  if not event_store_private.may_use(_registrar) then
    raise exception 'event belongs to another role'
      using
        errcode = 'MR046',
        detail = format(
          'event %s of decider %s was registered by role %s; %s is no member of it', v_event, v_decider, _registrar,
          event_store_private.caller_role()
        ),
        hint = 'Let that role, or an operator, register its schemas and upcasts. An operator gives the decider to a role by '
          'set_decider_owner.';
  end if;
end
$$;

comment on function event_store_private.require_registrar(text, text) is
'Raises MR046 unless the caller may register schemas and upcasts of the event.';
