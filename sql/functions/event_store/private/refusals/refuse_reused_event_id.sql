-- Raises that an event_id is taken by an event with other content.
create or replace function event_store_private.refuse_reused_event_id(
  v_event_id uuid
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'event_id is already stored with other content'
    using
      errcode = 'MR003',
      column = v_event_id::text,
      detail = (
        select format('event_id %s is event %s of stream (%s, %s) at offset %s', event_id, event, decider, decider_id, "offset")
        from event_store.events
        where event_id = v_event_id
      ),
      hint = 'A retry must repeat the event unchanged; another event needs an event_id of its own.';
end
$$;

comment on function event_store_private.refuse_reused_event_id(uuid) is 'Raises MR003 and names the stored event.';
