-- Without settings of its own, so that Postgres inlines it into the statements that call it.
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
  select
    coalesce(e.event_id, p.last_event_id), coalesce(e."offset", p.last_offset), coalesce(e.version, p.version), coalesce(e.final, p.final)
  from (select) asked
  left join lateral (
    select n.event_id, n."offset", n.version, n.final
    from event_store.events n
    where n.decider_id = v_decider_id and n.decider = v_decider
    order by n.version desc
    limit 1
  ) e on true
  -- where no event is kept
  left join event_store.purged_streams p on e.version is null and p.decider_id = v_decider_id and p.decider = v_decider
  where e.version is not null or p.version is not null
$$;

comment on function event_store_private.head_of_stream(text, text) is
'The head of one stream: its last event, purged or not; none for an unknown stream.';
