-- Waits until no other batch has the turn for one of these streams, and keeps it until the transaction ends: so of those
-- that lost a race for the same streams one goes on at a time. Writers that did not lose are not held up.
-- The caller's transaction has written nothing. So whoever waits here holds no stream, all wait in one order, and nobody
-- waits in a circle.
create or replace function event_store_private.take_turns(
  v_decider_ids text[]
)
returns void
language sql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed
  select from event_store.append_turns t
  where t.turn in (select (hashtextextended(d.decider_id, 0) & 1023)::int from unnest(v_decider_ids) d(decider_id))
  order by t.turn
  for update
$$;

comment on function event_store_private.take_turns(text[]) is
'Waits until no other batch that lost a race for one of these streams is at work.';
