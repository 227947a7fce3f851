-- Logical replication and some dumps copy a store without its sequences: then events with lower offsets than earlier
-- ones of their streams would never be delivered. v_head_offset is that of a stream to append to, possibly all purged.
-- An event that the statement sees drew its offset before. So none lies beyond the sequence's last value, and only the
-- range beyond is searched.
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
      -- in a subquery that runs once: called for each event, it could not use the index
      where e."offset" > (select coalesce(pg_sequence_last_value('event_store.events_offset_seq'), 0))
    );
end
$$;

comment on function event_store_private.are_sequences_behind(bigint) is
'Whether the next offsets would be lower than stored ones: the store was copied without its sequences.';
