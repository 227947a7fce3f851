-- Keeps everybody else from the versions of a read model until the transaction ends: who makes, serves or drops one
-- calls this first.
create or replace function event_store.lock_model(
  v_model text
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('read_models.' || v_model, 0));
end
$$;

comment on function event_store.lock_model(text) is
'Makes this transaction the only one that changes which versions read model v_model has, until it ends. Waits for '
'another one.';
revoke all on function event_store.lock_model(text) from public;
grant execute on function event_store.lock_model(text) to event_store_owner;
