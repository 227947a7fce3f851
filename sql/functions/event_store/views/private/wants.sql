-- The one definition of a view's filter; Postgres inlines it.
create or replace function event_store_private.wants(
  v_deciders text[],
  v_events text[],
  v_decider text,
  v_event text
)
returns boolean
language sql
immutable
parallel safe
as $$
  select (v_deciders is null or v_decider = any (v_deciders)) and (v_events is null or v_event = any (v_events))
$$;

comment on function event_store_private.wants(text[], text[], text, text) is
'Whether a view with these filters wants an event; null filters want all.';
