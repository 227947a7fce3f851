-- The head of one stream: its last event, purged or not.
-- Without settings of its own, so that Postgres writes it into the statements that ask for it.
create or replace function event_store_private.head_of_stream(
  v_decider_id text,
  v_decider text
)
returns table (
  last_event_id uuid,
  last_offset bigint,
  version bigint,
  final boolean
)
language sql
stable
as $$
  select h.*
  from (
    (
      select e.event_id, e."offset", e.version, e.final
      from event_store.events e
      where e.decider_id = v_decider_id and e.decider = v_decider
      order by e.version desc
      limit 1
    )
    union all
    select p.last_event_id, p.last_offset, p.version, p.final
    from event_store.purged_streams p
    where p.decider_id = v_decider_id and p.decider = v_decider
  ) h
  order by h.version desc
  limit 1
$$;

comment on function event_store_private.head_of_stream(text, text) is
'The head of one stream: its last event, purged or not; none for an unknown stream.';
