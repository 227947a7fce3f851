-- Raises that a stream has no such event in flight for the caller, and names the event in flight.
create or replace function event_store_private.refuse_not_in_flight(
  v_view text,
  v_decider_id text,
  v_offset bigint,
  v_lease_token bigint
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'event is not in flight'
    using
      errcode = 'MR016',
      detail = format(
        'view %L, decider_id %L, offset %s%s; %s',
        v_view,
        v_decider_id,
        coalesce(v_offset::text, 'any'),
        coalesce(', lease token ' || v_lease_token, ''),
        coalesce(
          (
            select string_agg(
              format(
                '%s: %s, acknowledged up to %s',
                k.decider,
                case
                  when k.parked_at is not null then 'parked'
                  when k.in_flight is null then 'nothing in flight'
                  else format(
                    'in flight %s%s',
                    k.in_flight,
                    case
                      when event_store_private.holds_lock(k, v_lease_token, event_store_private.clock()) then ''
                      when v_lease_token is null then format(', but its lock ended at %s', k.locked_until)
                      else ' for another consumer'
                    end
                  )
                end,
                k.last_offset
              ),
              '; ' order by k.decider
            )
            from event_store_private.locks_of_id(v_view, v_decider_id) k
          ),
          'nothing of this stream is waiting'
        )
      ),
      hint = 'Answer for each event once, before its lock ends, with its offset. After a late answer the event is delivered again: fetch it with stream_events.';
end
$$;

comment on function event_store_private.refuse_not_in_flight(text, text, bigint, bigint) is
'Raises MR016 and names the event in flight.';
