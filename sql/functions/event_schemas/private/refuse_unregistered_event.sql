-- Raises that a decider does not know an event, or, where it does, that it belongs to another role.
create or replace function event_store_private.refuse_unregistered_event(
  v_decider text,
  v_event text,
  v_event_version bigint
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.refuse_foreign_decider(v_decider, d.owner)
  from event_store.deciders d
  where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version;
  raise exception 'event is not registered for its decider'
    using
      errcode = 'MR004',
      detail = format(
        'decider %s has no event %s version %s; it has: %s',
        v_decider,
        v_event,
        v_event_version,
        coalesce(
          (
            select string_agg(format('%s version %s', event, event_version), ', ' order by event, event_version)
            from (
              select event, event_version from event_store.deciders
              where decider = v_decider order by event, event_version limit 20
            ) known
          ),
          'none'
        )
      ),
      hint = 'Register it: select * from register_decider_event(decider, event, description, version).';
end
$$;

comment on function event_store_private.refuse_unregistered_event(text, text, bigint) is
'Raises MR004 and lists the events that the decider has (at most 20), or MR046 where it has the event.';
