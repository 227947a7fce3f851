-- Raises that a stamp names a message with other content than before, if senders gave digests of the content.
create or replace function event_store_private.refuse_other_message(
  v_producer_id text,
  v_partition int,
  v_sequence bigint
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'stamp names another message'
    using
      errcode = 'MR028',
      detail = format(
        'producer %L, partition %s: message %s came before with another digest', v_producer_id, v_partition, v_sequence
      ),
      hint = 'A number names one message for ever. Register the producer and go on at its next_sequence; or the source has changed.';
end
$$;

comment on function event_store_private.refuse_other_message(text, int, bigint) is
'Raises MR028: a message of another content has this number.';
