-- Postgres refuses to prepare a transaction that notified.
create or replace function event_store_private.notifies_appends()
returns boolean
language sql
stable
as $$
  select current_setting('max_prepared_transactions') = '0'
$$;

comment on function event_store_private.notifies_appends() is
'Whether an append may notify a sleeping sequencer: not where transactions may be prepared.';
