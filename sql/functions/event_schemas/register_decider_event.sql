-- Repeating a registration waits for no other session. New events are registered one at a time: a transaction that
-- idles after registering one is ended after ten seconds.
-- A decider without an owner belongs to every writer; only members of its owner register events for it. The schemas and
-- upcasts of an event belong to the decider's owner, or else to the role that registers the event first.
-- Example: select * from register_decider_event('order', 'order_placed', 'A customer placed an order')
create or replace function event_store.register_decider_event(
  v_decider text,
  v_event text,
  v_description text,
  v_event_version bigint default 1,
  v_owner text default null
)
returns table (
  decider text,
  event text,
  event_version bigint,
  description text
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _known constant boolean := exists (
    select from event_store.deciders d where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version
  );
  _owner text;
begin
  if coalesce(v_decider, '') = '' or coalesce(v_event, '') = '' or v_description is null or (v_event_version >= 1) is not true then
    perform event_store_private.refuse_request(
      format('decider %L, event %L, description %L, version %L', v_decider, v_event, v_description, v_event_version),
      'Decider and event must be named; the description must not be null; versions count from 1.'
    );
  end if;
  if greatest(octet_length(v_decider), octet_length(v_event)) > 1024 or octet_length(v_description) > 10000 then
    perform event_store_private.refuse_request(
      format(
        'decider has %s bytes, event %s, description %s', octet_length(v_decider), octet_length(v_event), octet_length(v_description)
      ),
      'A name has at most 1024 bytes, a description 10000.'
    );
  end if;
  if v_decider = 'privacy' or starts_with(v_decider, 'model:')
    or starts_with(v_decider, 'table:') and not event_store_private.is_operator()
  then
    perform event_store_private.refuse_request(
      format('decider %L has a reserved name', v_decider),
      'Name it otherwise: privacy and model:… are reserved, and table:… for captures, which register their tables themselves.'
    );
  end if;
  if v_owner is not null and to_regrole(quote_ident(v_owner)) is null then
    perform event_store_private.refuse_request(format('there is no role %I', v_owner), 'Name a role that logins are members of.');
  end if;
  if not event_store_private.may_use(v_owner) then
    perform event_store_private.refuse_foreign_decider(v_decider, v_owner);
  end if;
  if not _known then
    perform event_store_private.bound_idle_transaction();
    perform event_store_private.lock_deciders();
  end if;
  select d.owner into _owner from event_store.deciders d where d.decider = v_decider limit 1;
  if found and (not event_store_private.may_use(_owner) or v_owner is distinct from _owner and v_owner is not null) then
    perform event_store_private.refuse_foreign_decider(v_decider, _owner);
  elsif not found then
    _owner := v_owner;
  end if;
  if not _known then
    insert into event_store.deciders (decider, event, event_version, description, owner, registered_by)
    values (
      v_decider, v_event, v_event_version, v_description, _owner,
      coalesce(
        (select d.registered_by from event_store.deciders d where d.decider = v_decider and d.event = v_event limit 1),
        event_store_private.caller_role()
      )
    )
    on conflict do nothing;
    if found and _owner is not null then
      perform event_store_private.audit(
        'register_decider_event', null, null,
        jsonb_build_object('decider', v_decider, 'event', v_event, 'event_version', v_event_version, 'owner', _owner)
      );
    end if;
  end if;
  return query
  select d.decider, d.event, d.event_version, d.description from event_store.deciders d
  where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version;
end
$$;

comment on function event_store.register_decider_event(text, text, text, bigint, text) is
'Lets v_decider append v_event and returns the registration. Registered again, also with another v_description, it '
'stays as it is. v_event_version counts the versions of the event''s schema, from 1. The first registration of a decider may '
'name its owner: then only members of v_owner append to it. MR005 a name is empty, too long or reserved, an argument is '
'null, a version below 1, or v_owner no role; MR046 the decider belongs to another role, or the caller is no member of v_owner.';
revoke all on function event_store.register_decider_event(text, text, text, bigint, text) from public;
grant execute on function event_store.register_decider_event(text, text, text, bigint, text)
to event_store_writer, event_store_owner;
