-- Call this first to make, serve or drop a version. It locks a key that only this function inserts: an advisory key
-- could be held by any login. An insert of a key that another open transaction has inserted waits for that one, even if
-- that one deleted the key again.
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
  perform event_store_private.bound_idle_transaction();
  -- a row that an older store left: its deleter goes first
  delete from event_store.model_locks where model = v_model;
  insert into event_store.model_locks (model) values (v_model);
  delete from event_store.model_locks where model = v_model;
end
$$;

comment on function event_store_platform.lock_model(text) is
'Makes this transaction the only one that changes which versions read model v_model has, until it ends. Waits for '
'another one. MR005 an argument is null.';
revoke all on function event_store_platform.lock_model(text) from public;
grant execute on function event_store_platform.lock_model(text) to event_store_owner;
