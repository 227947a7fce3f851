-- One list for single appends, batches and COPY. It checks the event by itself.
create or replace function event_store_private.event_fault(
  v_event text,
  v_event_id uuid,
  v_event_version bigint,
  v_decider text,
  v_decider_id text,
  v_data jsonb,
  v_command_id uuid,
  v_final boolean,
  v_expected_version bigint default null,
  v_metadata jsonb default null
)
returns text
language sql
stable
as $$
  select coalesce(case
    when v_decider is null then 'decider is null'
    when v_decider_id is null then 'decider_id is null'
    when v_decider_id = '' then 'decider_id is empty'
    when octet_length(v_decider_id) > 1024 then
      format('decider_id has %s bytes; at most 1024 are allowed', octet_length(v_decider_id))
    when v_event is null then 'event is null'
    when v_event_id is null then 'event_id is null'
    when v_event_version is null then 'event_version is null'
    when v_data is null then 'data is null'
    when v_command_id is null then 'command_id is null'
    when v_final is null then 'final is null'
    when v_expected_version < 0 then format('expected_version is %s; it is 0 for a new stream', v_expected_version)
    -- Data that are small in memory and as text meet all limits. The text must be checked: 1e100000 takes 20 bytes. It
    -- counts as long where it has the word $sealed: so one text serves both, which a path of jsonb does not for less.
    when pg_column_size(v_data) > 700 or octet_length(replace(v_data::text, '"$sealed"', repeat('x', 901))) > 900
      or pg_column_compression(v_data) is not null or current_setting('event_store.max_data_bytes', true) <> ''
      then coalesce(
        event_store_private.data_fault(v_data),
        -- reserved for data that only the holder of a key can read
        case when event_store_private.is_unsealed(v_data)
          then '$sealed of data is a reserved word: alone in its object, 1.<key>.<nonce>.<ciphertext> as base64url'
        end
      )
  end, case when v_metadata is not null then event_store_private.metadata_fault(v_metadata) end)
$$;

comment on function event_store_private.event_fault(text, uuid, bigint, text, text, jsonb, uuid, boolean, bigint, jsonb) is
'What makes an event unfit to be stored, as a sentence; null if nothing.';
