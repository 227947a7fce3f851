-- Called after lock_model, once has_caught_up says that this version has no lag.
create or replace function event_store_platform.serve_version(
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
  -- one after the other: one version serves at a time (declarations_serving_key)
  update read_models.declarations set serves = false where model = v_model and serves;
  update read_models.declarations set serves = true where model = v_model and version = v_version;
end
$$;

comment on function event_store_platform.serve_version(text, int) is
'Makes version v_version of read model v_model the one that people read, in the transaction that replaces the '
'model''s SQL view. MR005 an argument is null.';
revoke all on function event_store_platform.serve_version(text, int) from public;
grant execute on function event_store_platform.serve_version(text, int) to event_store_owner;
