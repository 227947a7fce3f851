-- v_owner is for all of the events; event_version is 1 if it is left out.
-- Races: concurrent registrations of new events wait for each other; two of the same event make one.
-- Example: select * from register_decider_events('[{"decider": "order", "event": "paid", "description": "It was paid"}]')
create or replace function event_store.register_decider_events(
  v_events jsonb,
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
  _known constant text[] := '{decider,event,description,event_version}';
  _fault text;
begin
  if v_events is null or jsonb_typeof(v_events) <> 'array' or jsonb_array_length(v_events) = 0 then
    perform event_store_private.refuse_request(
      'v_events is no JSON array of at least one event', 'The keys of an event are decider, event, description, event_version.'
    );
  end if;
  select format('element %s: %s', e.ordinal, e.element) into _fault
  from jsonb_array_elements(v_events) with ordinality e(element, ordinal)
  where jsonb_typeof(e.element) <> 'object'
    or case when jsonb_typeof(e.element) = 'object' then e.element - _known <> '{}' end
    or jsonb_typeof(e.element -> 'event_version') not in ('number', 'null')
    or case when jsonb_typeof(e.element -> 'event_version') = 'number' then
      (e.element ->> 'event_version')::numeric not between 1 and 9223372036854775807
      or (e.element ->> 'event_version')::numeric % 1 <> 0
    end
  order by e.ordinal
  limit 1;
  if found then
    perform event_store_private.refuse_request(
      left(_fault, 1000), 'The keys of an event are decider, event, description, event_version, which is a whole number from 1.'
    );
  end if;
  return query
  select r.*
  from jsonb_array_elements(v_events) with ordinality e(element, ordinal)
  cross join lateral event_store.register_decider_event(
    e.element ->> 'decider',
    e.element ->> 'event',
    e.element ->> 'description',
    coalesce((e.element ->> 'event_version')::bigint, 1),
    v_owner
  ) r
  order by e.ordinal;
end
$$;

comment on function event_store.register_decider_events(jsonb, text) is
'Registers many events, all or none, and returns them in the order given, as register_decider_event does for one. '
'v_events is a JSON array of {decider, event, description, event_version}. MR005 it is none, has unknown keys, or a '
'name is empty or too long; MR046 a decider belongs to another role, or the caller is no member of v_owner.';
revoke all on function event_store.register_decider_events(jsonb, text) from public;
grant execute on function event_store.register_decider_events(jsonb, text) to event_store_writer, event_store_owner;
