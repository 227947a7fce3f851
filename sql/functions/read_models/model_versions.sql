-- They are the version that people read, and a version that is built beside it.
-- Example: select version, view, serves from model_versions('orders')
create or replace function event_store_platform.model_versions(
  v_model text
)
returns table (
  version int,
  view text,
  fingerprint text,
  serves boolean,
  unbuilt int[],
  approved boolean
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select d.version, d.view, d.fingerprint, d.serves, d.unbuilt, d.approved
  from read_models.declarations d
  where d.model = v_model
  order by d.version
$$;

comment on function event_store_platform.model_versions(text) is
'Returns the versions of read model v_model, the oldest first: the view that each is consumed as, the hash of its '
'declaration, whether people read it (serves), the log partitions that are to be rebuilt from the archive (unbuilt), '
'and whether it may serve (approved).';
revoke all on function event_store_platform.model_versions(text) from public;
grant execute on function event_store_platform.model_versions(text) to event_store_reader, event_store_owner;
