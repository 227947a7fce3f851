-- No other transaction emits, requeues or discards until this one ends.
create or replace function event_store_private.lock_quarantined_change(
  v_quarantine_id bigint
)
returns event_store.quarantined_changes
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _capture constant text := (select capture from event_store.quarantined_changes where quarantine_id = v_quarantine_id);
  _change event_store.quarantined_changes;
begin
  if _capture is not null then
    perform event_store_private.lock_capture(_capture);
  end if;
  select * into _change from event_store.quarantined_changes where quarantine_id = v_quarantine_id;
  if not found then
    raise exception 'change is not quarantined'
      using
        errcode = 'MR035',
        detail = format('quarantine_id %s', coalesce(v_quarantine_id::text, 'null')),
        hint = 'The table quarantined_changes lists what is.';
  end if;
  return _change;
end
$$;

comment on function event_store_private.lock_quarantined_change(bigint) is
'A quarantined change with its capture locked. MR030, MR035 not quarantined.';
