-- A new backfill of a table draws another number for it, or the table leaves its capture. A backfill that ended has
-- removed its own rows (finish_backfill).
create or replace function event_store_private.forget_unchanged_rows()
returns trigger
language plpgsql
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed
begin
  delete from event_store.unchanged_rows where backfill_offset = old.backfill_offset;
  return null;
end
$$;

comment on function event_store_private.forget_unchanged_rows() is
'Trigger: removes the findings of a backfill that another one replaces.';

create or replace trigger forget_unchanged_rows
after delete or update of backfill_offset on event_store.captured_tables
for each row
execute function event_store_private.forget_unchanged_rows();

comment on trigger forget_unchanged_rows on event_store.captured_tables is 'Leaves nothing of a backfill that never ended.';

create or replace trigger forget_unchanged_rows
after delete on event_store.verifications
for each row
execute function event_store_private.forget_unchanged_rows();

comment on trigger forget_unchanged_rows on event_store.verifications is 'Leaves nothing of a verification that never ended.';
