-- Found by its newest revision: dead versions of the row stay while a session holds an old snapshot. As with
-- checkpoint_of, Postgres inlines it. It compares in the collation of the call: that of the id columns, not the view's.
create or replace function event_store_private.newest_lock(
  v_view text,
  v_decider_id text,
  v_decider text
)
returns setof event_store.stream_locks
language sql
stable
as $$
  select k.*
  from event_store.stream_locks k
  where k.view = v_view collate "default" and k.decider_id = v_decider_id and k.decider = v_decider
  order by k.revision desc
  limit 1
$$;

comment on function event_store_private.newest_lock(text, text, text) is
'The lock of a stream, without a look at dead versions of the row.';
