-- A verification is over once it ended, another one of its table began, or the whole table is read again.
create or replace function event_store_private.current_verification(
  v_verification bigint
)
returns event_store.verifications
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _capture constant text := (select r.capture from event_store.verifications r where r.backfill_offset = v_verification);
  _verification event_store.verifications;
begin
  if _capture is not null then
    perform event_store_private.lock_capture(_capture);
  end if;
  select r.* into _verification
  from event_store.verifications r
  join event_store.captured_tables t using (capture, schema_name, table_name)
  where r.backfill_offset = v_verification and t.backfill_generation = r.source_generation;
  if not found then
    raise exception 'verification is over'
      using
        errcode = 'MR049',
        detail = format('verification %s', coalesce(v_verification::text, 'null')),
        hint = 'It ended, or another one of its table began. Begin it again: select begin_verification(...).';
  end if;
  return _verification;
end
$$;

comment on function event_store_private.current_verification(bigint) is 'A verification with its capture locked. MR049 it is over.';
