-- Keeps everybody else from the versions of a read model until the transaction ends: who makes, serves or drops one
-- calls this first. The lock is that of a row which only this function reaches: an advisory key could be held by any
-- login.
create or replace function event_store_platform.lock_model(
  v_model text
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if v_model is null then
    perform event_store_private.refuse_request('an argument is null', 'Name the model and state what is asked for.');
  end if;
  insert into event_store.model_locks (model) values (v_model) on conflict do nothing;
  perform from event_store.model_locks where model = v_model for update;
end
$$;

comment on function event_store_platform.lock_model(text) is
'Makes this transaction the only one that changes which versions read model v_model has, until it ends. Waits for '
'another one. MR005 an argument is null.';
revoke all on function event_store_platform.lock_model(text) from public;
grant execute on function event_store_platform.lock_model(text) to event_store_owner;
