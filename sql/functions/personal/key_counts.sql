-- Example: select * from key_counts()
create or replace function event_store.key_counts()
returns table (
  epoch int,
  fingerprint text,
  began_at timestamptz,
  living bigint,
  forgotten bigint,
  destroyed_at timestamptz,
  confirmed_at timestamptz,
  forgotten_since timestamptz
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select e.epoch, e.fingerprint, e.began_at, count(k.wrapped), count(k.forgotten_at), e.destroyed_at, e.confirmed_at, min(k.forgotten_at)
  from event_store_keys.epochs e
  left join event_store_keys.subject_keys k using (epoch)
  group by e.epoch
  order by e.epoch
$$;

comment on function event_store.key_counts() is 'Returns the epochs of keys, each with its living and its forgotten keys, and since when the first of these is gone.';
revoke all on function event_store.key_counts() from public;
grant execute on function event_store.key_counts() to event_store_personal, event_store_reader, event_store_owner;
