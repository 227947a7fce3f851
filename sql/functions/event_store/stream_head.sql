-- For the next writer of the stream: last_event_id is the previous_id of the next event.
-- Example: select last_event_id, version from stream_head('o-1', 'order')
create or replace function event_store.stream_head(
  v_decider_id text,
  v_decider text
)
returns table (
  last_event_id uuid,
  last_offset bigint,
  version bigint,
  final boolean
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
begin
  return query
  select * from event_store_private.head_of_stream(v_decider_id, v_decider);
end
$$;

comment on function event_store.stream_head(text, text) is
'Returns where the stream (v_decider, v_decider_id) stands: event_id and offset of its last event, how many events it'
' had (version), whether it is closed (final). It stays when events are purged. None for an unknown stream.';
revoke all on function event_store.stream_head(text, text) from public;
grant execute on function event_store.stream_head(text, text)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
