-- Raises that a stream has no such event in flight, and what it has.
create or replace function event_store.refuse_not_in_flight(
  v_view text,
  v_decider_id text,
  v_offset bigint default null
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
        'view %L, decider_id %L, offset %s; %s',
        v_view,
        v_decider_id,
        coalesce(v_offset::text, 'any'),
        coalesce(
          (
            select string_agg(
              format('%s: in flight %s, acknowledged up to %s', decider, coalesce(in_flight::text, 'none'), last_offset),
              '; ' order by decider
            )
            from event_store.stream_locks
            where view = v_view and decider_id = v_decider_id
          ),
          'nothing of this stream is waiting'
        )
      ),
      hint = 'Acknowledge or give back each event once, before its lease ends; fetch again with stream_events.';
end
$$;

comment on function event_store.refuse_not_in_flight(text, text, bigint) is 'Raises MR016 and says what is in flight.';
