-- For a caller that found another head of the stream than it expected. fstore-sql's message texts are kept; every
-- conflict has one SQLSTATE.
create or replace function event_store_private.refuse_append(
  v_decider text,
  v_decider_id text,
  v_event_id uuid,
  v_previous_id uuid,
  v_expected_version bigint default null
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _stream record;
begin
  select
    h.*,
    exists (
      select from event_store.events e
      where e.event_id = v_previous_id and e.decider_id = v_decider_id and e.decider = v_decider
    ) as knows_previous
  into _stream
  from event_store_private.head_of_stream(v_decider_id, v_decider) h;
  if _stream.final then
    raise exception 'last event for this decider stream is already final. the stream is closed, you can not append events to it.'
      using
        errcode = 'MR002',
        column = v_event_id::text, -- by which the sender of several events finds it
        detail = format('stream (%s, %s) was closed by event_id %s at version %s', v_decider, v_decider_id, _stream.last_event_id, _stream.version),
        hint = 'Append to another stream.';
  end if;
  raise exception using
    errcode = 'MR001',
    column = v_event_id::text,
    message = case
      when v_expected_version not in (coalesce(_stream.version, 0), -1) then 'expected_version must be the version of the decider stream'
      when v_previous_id is null then 'previous_id can only be null for the first decider event'
      when _stream.knows_previous then 'previous_id must be the last event of the decider stream'
      else 'previous_id must be in the same decider'
    end,
    detail = format(
      'event_id %s states %s; stream (%s, %s) has %s',
      v_event_id,
      concat_ws(
        ' and ',
        case
          when v_previous_id is not null or v_expected_version is null then format('previous_id %s', coalesce(v_previous_id::text, 'null'))
        end,
        'expected_version ' || nullif(v_expected_version, -1)
      ),
      v_decider,
      v_decider_id,
      case
        when _stream.last_event_id is null then 'no event'
        else format('last event_id %s at version %s', _stream.last_event_id, _stream.version)
      end
    ),
    hint = 'Read the stream again, decide again, and append with its last event_id as previous_id; stream_head has it, also where events were purged.';
end
$$;

comment on function event_store_private.refuse_append(text, text, uuid, uuid, bigint) is
'Raises MR001 (conflict) or MR002 (closed stream) with the stream''s state in DETAIL.';
