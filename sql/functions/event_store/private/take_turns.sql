-- The turn is kept until the transaction ends: so the batches that lost a race for the same streams proceed one at a
-- time. Writers that did not lose are not held up.
-- The caller's transaction has written nothing. So waiting sessions hold no stream, and all wait in one order: there is
-- no deadlock. Turns only decide how soon all are done: if one idles in its transaction and keeps its turn, the others
-- continue without.
create or replace function event_store_private.take_turns(
  v_decider_ids text[]
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
set lock_timeout = '2s'
as $$
-- planner: indexed
begin
  perform from event_store.append_turns t
  where t.turn in (select (hashtextextended(d.decider_id, 0) & 1023)::int from unnest(v_decider_ids) d(decider_id))
  order by t.turn
  for update;
exception when lock_not_available then
  null;
end
$$;

comment on function event_store_private.take_turns(text[]) is
'Waits, for two seconds at most, until no other batch that lost a race for one of these streams is at work.';
