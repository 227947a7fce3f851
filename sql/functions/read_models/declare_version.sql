-- Called after lock_model.
create or replace function event_store_platform.declare_version(
  v_model text,
  v_version int,
  v_view text,
  v_fingerprint text,
  v_serves boolean,
  v_unbuilt int[],
  v_approved boolean
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if num_nulls(v_model, v_version, v_view, v_fingerprint, v_serves, v_unbuilt, v_approved) > 0 then
    perform event_store_private.refuse_request('an argument is null', 'Name the model and state what is asked for.');
  end if;
  insert into read_models.declarations (model, version, view, fingerprint, serves, unbuilt, approved)
  values (v_model, v_version, v_view, v_fingerprint, v_serves, v_unbuilt, v_approved);
end
$$;

comment on function event_store_platform.declare_version(text, int, text, text, boolean, int[], boolean) is
'Records version v_version of read model v_model, in the transaction that makes its tables: it is consumed as v_view, '
'v_fingerprint is the hash of its declaration, v_serves says whether people read it, v_unbuilt are the log partitions '
'with first events that only the archive has, v_approved is false if a person must approve it before it serves. MR005 '
'an argument is null.';
revoke all on function event_store_platform.declare_version(text, int, text, text, boolean, int[], boolean) from public;
grant execute on function event_store_platform.declare_version(text, int, text, text, boolean, int[], boolean) to event_store_owner;
