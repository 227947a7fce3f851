-- The decider's events come from the source's log, and only the capture appends them.
create or replace function event_store_private.refuse_captured_decider(
  v_decider text
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'decider belongs to a capture'
    using
      errcode = 'MR034',
      detail = (
        select format('decider %s is that of %s.%s of capture %s', c.decider, c.schema_name, c.table_name, c.capture)
        from event_store.captured_tables c
        where c.decider = v_decider
      ),
      hint = 'Change the row in the source, or append to another decider; nothing was stored.';
end
$$;

comment on function event_store_private.refuse_captured_decider(text) is
'Raises MR034 with the captured table that the decider belongs to.';
