-- Does not select from event_store.locks, which lacks the decider.
create or replace function event_store_private.lock_of_stream(
  v_view text,
  v_decider_id text,
  v_decider text
)
returns setof event_store.locks
language sql
stable
as $$
  select l.view, l.decider_id, s.last_offset, l.last_offset, l.locked_until, s.final, l.created_at, l.updated_at
  from event_store_private.newest_lock(v_view, v_decider_id, v_decider) l
  cross join lateral event_store_private.head_of_stream(l.decider_id, l.decider) s
$$;

comment on function event_store_private.lock_of_stream(text, text, text) is
'The lock of one stream, in fstore-sql''s columns.';
