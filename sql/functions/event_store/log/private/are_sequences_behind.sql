-- Logical replication and some dumps copy it so: events with lower offsets than their streams' would never be
-- delivered. v_head_offset: of a stream that somebody appends to, whose events may all be purged.
-- An event that the statement sees had its offset before: so none is beyond the sequence's last value, and only what
-- lies there is looked at.
create or replace function event_store_private.are_sequences_behind(
  v_head_offset bigint default 0
)
returns boolean
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
begin
  return v_head_offset > coalesce(pg_sequence_last_value('event_store.events_offset_seq'), 0)
    or exists (
      select from event_store.events e
      -- asked once: for each event it could not be looked for by index
      where e."offset" > (select coalesce(pg_sequence_last_value('event_store.events_offset_seq'), 0))
    );
end
$$;

comment on function event_store_private.are_sequences_behind(bigint) is
'Whether offsets that are drawn next would be lower than stored ones: the store was copied without its sequences.';
