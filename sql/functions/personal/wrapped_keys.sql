-- Example: select * from wrapped_keys()
create or replace function event_store_platform.wrapped_keys()
returns table (
  key_id text,
  epoch int,
  wrapped bytea
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select k.key_id, k.epoch, k.wrapped
  from event_store_keys.epochs e
  cross join lateral (select s.* from event_store_keys.subject_keys s where s.epoch = e.epoch and s.wrapped is not null limit 1) k
  order by k.epoch
$$;

comment on function event_store_platform.wrapped_keys() is
'Returns one living key of each epoch that still wraps one: whether the files of the epochs open them.';
revoke all on function event_store_platform.wrapped_keys() from public;
grant execute on function event_store_platform.wrapped_keys() to event_store_owner;
