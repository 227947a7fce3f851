-- Whether a decider_id is a UUID with letters in upper case. Such a stream would be another one than that of the same
-- UUID as Postgres writes it, which is what callers that pass a uuid mean: so nobody may append to one. Streams of
-- captured tables have the keys that the source has.
create or replace function event_store_private.is_upper_uuid(
  v_decider_id text
)
returns boolean
language sql
immutable
parallel safe
as $$
  -- the cheap questions first: this is asked for each event
  select octet_length(v_decider_id) = 36
    and v_decider_id collate "C" <> lower(v_decider_id collate "C")
    and v_decider_id ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$'
$$;

comment on function event_store_private.is_upper_uuid(text) is
'Whether a decider_id is a UUID with letters in upper case.';
