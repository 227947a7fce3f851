-- The rule of exactly-once producers. The epoch is judged first. A high-water mark decides, not a window: a duplicate
-- is recognized at any age.
create or replace function event_store_private.judge_stamp(
  v_epoch bigint,
  v_sequence bigint,
  v_current_epoch bigint,
  v_next_sequence bigint
)
returns text
language sql
immutable
as $$
  select case
    when v_epoch < v_current_epoch then 'fenced'
    when v_epoch > v_current_epoch then 'unknown_epoch'
    when v_sequence < v_next_sequence then 'duplicate'
    when v_sequence > v_next_sequence then 'gap'
    else 'opened'
  end
$$;

comment on function event_store_private.judge_stamp(bigint, bigint, bigint, bigint) is
'The verdict on a message: opened (the next one), duplicate, gap, fenced or unknown_epoch.';
