-- A version newer than v_built may come from newer code, and is never unused while it waits for its approval.
create or replace function event_store_platform.is_unused_version(
  v_model text,
  v_version int,
  v_built int,
  v_abandoned_s bigint default 86400
)
returns boolean
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
  select exists (
    select from read_models.declarations d
    where d.model = v_model and d.version = v_version and not d.serves
      and (d.version < v_built or d.approved and d.declared_at < clock_timestamp() - make_interval(secs => v_abandoned_s))
  )
$$;

comment on function event_store_platform.is_unused_version(text, int, int, bigint) is
'Returns whether version v_version of read model v_model is unused: it does not serve, and is older than version '
'v_built or was declared or approved v_abandoned_s ago.';
revoke all on function event_store_platform.is_unused_version(text, int, int, bigint) from public;
grant execute on function event_store_platform.is_unused_version(text, int, int, bigint) to event_store_owner;
