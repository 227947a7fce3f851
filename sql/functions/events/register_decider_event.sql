-- Registers an event that a decider may append, and returns it as registered. Again, also with another description:
-- no-op.
-- Example: select * from register_decider_event('order', 'order_placed', 'A customer placed an order')
create or replace function event_store.register_decider_event(
  v_decider text,
  v_event text,
  v_description text,
  v_event_version bigint default 1
)
returns setof event_store.deciders
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if coalesce(v_decider, '') = '' or coalesce(v_event, '') = '' or v_description is null or v_event_version is null then
    perform event_store_private.refuse_request(
      format('decider %L, event %L, description %L, version %L', v_decider, v_event, v_description, v_event_version),
      'Decider and event must be named; description and version must not be null.'
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
  insert into event_store.deciders (decider, event, event_version, description)
  values (v_decider, v_event, v_event_version, v_description)
  on conflict do nothing;
  return query
  select * from event_store.deciders d
  where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version;
end
$$;

comment on function event_store.register_decider_event(text, text, text, bigint) is
'Lets v_decider append v_event and returns the registration. Registered again, also with another v_description, it '
'stays as it is. v_event_version counts the versions of the event''s schema. MR005 a name is empty or too '
'long, or an argument is null.';
revoke all on function event_store.register_decider_event(text, text, text, bigint) from public;
grant execute on function event_store.register_decider_event(text, text, text, bigint)
to event_store_writer, event_store_owner;
