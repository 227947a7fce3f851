-- Called after lock_model.
create or replace function event_store_platform.approve_version(
  v_model text,
  v_version int,
  v_reason text
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
  update read_models.declarations
  set approved = true, declared_at = clock_timestamp()
  where model = v_model and version = v_version and not approved;
  if found then
    perform event_store_private.audit(
      'approve_version', null, v_reason, jsonb_build_object('model', v_model, 'version', v_version)
    );
  end if;
end
$$;

comment on function event_store_platform.approve_version(text, int, text) is
'Lets version v_version of read model v_model serve once it has caught up; audited with v_reason, once. MR005 v_model '
'or v_version is null.';
revoke all on function event_store_platform.approve_version(text, int, text) from public;
grant execute on function event_store_platform.approve_version(text, int, text) to event_store_owner;
