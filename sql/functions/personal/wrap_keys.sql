-- One step of a rotation. Repeating it changes nothing, and a key that was forgotten meanwhile stays forgotten.
-- Example: select * from wrap_keys(2, '9f86d081…', array[key_id], array[wrapped], 1000)
create or replace function event_store_platform.wrap_keys(
  v_epoch int,
  v_fingerprint text,
  v_key_ids text[],
  v_wrapped bytea[],
  v_limit int
)
returns table (
  key_id text,
  epoch int,
  wrapped bytea
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  perform event_store_private.require_key_epoch(v_epoch, v_fingerprint);
  perform event_store_private.commit_durably();
  update event_store_keys.subject_keys k
  set epoch = v_epoch, wrapped = n.wrapped
  from unnest(v_key_ids, v_wrapped) n(key_id, wrapped)
  where k.key_id = n.key_id and k.epoch < v_epoch and k.wrapped is not null;
  return query
  select k.key_id, k.epoch, k.wrapped
  from event_store_keys.subject_keys k
  where k.epoch < v_epoch and k.wrapped is not null
  limit greatest(v_limit, 0);
end
$$;

comment on function event_store_platform.wrap_keys(int, text, text[], bytea[], int) is
'Keeps living keys as the last epoch wraps them, and returns up to v_limit others that an earlier one still wraps. MR055 the '
'epoch is not the last.';
revoke all on function event_store_platform.wrap_keys(int, text, text[], bytea[], int) from public;
grant execute on function event_store_platform.wrap_keys(int, text, text[], bytea[], int) to event_store_owner;
