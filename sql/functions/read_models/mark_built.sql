-- Only the archive had those first events.
create or replace function event_store_platform.mark_built(
  v_model text,
  v_version int,
  v_partitions int[]
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if num_nulls(v_model, v_version, v_partitions) > 0 then
    perform event_store_private.refuse_request('an argument is null', 'Name the model and state what is asked for.');
  end if;
  update read_models.declarations
  set unbuilt = array(select u from unnest(unbuilt) u where u <> all (v_partitions) order by u)
  where model = v_model and version = v_version and unbuilt && v_partitions;
end
$$;

comment on function event_store_platform.mark_built(text, int, int[]) is
'Records in the transaction of a rebuild that the log partitions v_partitions of version v_version of read model '
'v_model are built from their first events on, and so no longer unbuilt. MR005 an argument is null.';
revoke all on function event_store_platform.mark_built(text, int, int[]) from public;
grant execute on function event_store_platform.mark_built(text, int, int[]) to event_store_owner;
