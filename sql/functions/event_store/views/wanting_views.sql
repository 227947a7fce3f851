-- v_known has log partitions 0, 1, … in order. If a log partition has more than a thousand new events, none is read.
-- For the sequencer, which dispatches to these views at once: it reads new events once, as kinds, whatever the number
-- of views.
-- Example: select view from wanting_views('{}')
create or replace function event_store_platform.wanting_views(
  v_known bigint[]
)
returns table (
  view text,
  owner text
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
declare
  _all boolean;
  _deciders text[];
  _events text[];
begin
  if v_known is null then
    perform event_store_private.refuse_request('v_known is null', 'Pass what announce_positions returned; an empty array asks for all views.');
  end if;
  select coalesce(bool_or((p.high_water_mark - v_known[p.partition + 1] <= 1000) is not true), false) into _all
  from event_store.partitions p;
  if not _all then
    select array_agg(k.decider), array_agg(k.event) into _deciders, _events
    from (
      select distinct e.decider, e.event
      from event_store.partitions p
      join event_store.event_log l
        on l.partition = p.partition and l.position >= v_known[p.partition + 1] and l.position < p.high_water_mark
      join event_store.events e using ("offset")
    ) k;
    if _deciders is null then
      return;
    end if;
  end if;
  return query
  select v.view, v.owner
  from event_store.views v
  where v.mode = 'rows' and v.enabled
    and (
      _all
      or exists (
        select from unnest(_deciders, _events) k(decider, event)
        where event_store_private.wants(v.deciders, v.events, k.decider, k.event)
      )
    )
  order by v.view;
end
$$;

comment on function event_store_platform.wanting_views(bigint[]) is
'Returns the enabled rows views that want an event behind v_known, the high-water marks that announce_positions returned, '
'and their owners; all of them for an empty array, or where a log partition has more than a thousand new events. MR005 '
'v_known is null.';
revoke all on function event_store_platform.wanting_views(bigint[]) from public;
grant execute on function event_store_platform.wanting_views(bigint[]) to event_store_consumer, event_store_owner;
