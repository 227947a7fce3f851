-- The rows contain the effect of the changes. audit_log has their number, and the first hundred of them one by one.
create or replace function event_store_private.supersede_changes(
  v_table event_store.captured_tables,
  v_quarantine_ids bigint[]
)
returns bigint
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
declare
  _number bigint;
  _changes jsonb;
begin
  with gone as (
    delete from event_store.quarantined_changes q where q.quarantine_id = any(v_quarantine_ids) returning q.*
  )
  select
    count(*),
    jsonb_agg(
      jsonb_build_object(
        'decider_id', g.decider_id, 'action', g.action, 'event_id', g.event_id, 'commit_lsn', g.commit_lsn, 'fault', left(g.fault, 1000)
      )
      order by g.quarantine_id
    ) filter (where g.number <= 100)
  into _number, _changes
  from (select *, row_number() over (order by quarantine_id) as number from gone) g;
  if _number > 0 then
    perform event_store_private.audit(
      'supersede_changes', null, 'the rows were read again',
      jsonb_build_object(
        'capture', v_table.capture, 'decider', v_table.decider, 'verification', v_table.backfill_offset, 'number', _number, 'changes', _changes
      )
    );
  end if;
  return _number;
end
$$;

comment on function event_store_private.supersede_changes(event_store.captured_tables, bigint[]) is
'Gives up quarantined changes of rows that were read since, audited; returns how many.';
