-- A stream of such an id would differ from that of the same UUID as Postgres writes it, which callers that pass a uuid
-- mean: so no caller may append to one. Streams of captured tables have the keys of the source.
create or replace function event_store_private.is_upper_uuid(
  v_decider_id text
)
returns boolean
language sql
immutable
parallel safe
as $$
  -- Checked for each event, and nearly always decided by the first test; `and` has no fixed order.
  select case
    when v_decider_id ~ '[A-F]' then v_decider_id ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$'
    else false
  end
$$;

comment on function event_store_private.is_upper_uuid(text) is
'Whether a decider_id is a UUID with letters in upper case.';
