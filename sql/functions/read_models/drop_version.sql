-- Called after lock_model.
create or replace function event_store_platform.drop_version(
  v_model text,
  v_version int
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if num_nulls(v_model, v_version) > 0 then
    perform event_store_private.refuse_request('an argument is null', 'Name the model and state what is asked for.');
  end if;
  delete from read_models.declarations where model = v_model and version = v_version;
  if found then
    perform event_store_private.audit('drop_version', null, null, jsonb_build_object('model', v_model, 'version', v_version));
  end if;
end
$$;

comment on function event_store_platform.drop_version(text, int) is
'Forgets version v_version of read model v_model, in the transaction that drops its tables. MR005 an argument is null.';
revoke all on function event_store_platform.drop_version(text, int) from public;
grant execute on function event_store_platform.drop_version(text, int) to event_store_owner;
