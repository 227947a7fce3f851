-- A restore takes events as they are, and a forged event must not fail its capture for ever: a value of the wrong form
-- is null, as if the event did not state it.
-- pg_input_is_valid needs PostgreSQL 16, so patterns check the values; each passes only values that its type holds.
-- Without settings of its own, so that Postgres inlines it into the calling statements.
create or replace function event_store_private.change_origin(
  v_data jsonb
)
returns table (
  generation int,
  xid xid8,
  commit_lsn pg_lsn,
  commit_idx bigint
)
language sql
immutable
as $$
  select
    case when v_data -> 'source' ->> 'generation' ~ '^[0-9]{1,9}$' then (v_data -> 'source' ->> 'generation')::int end,
    case when v_data ->> 'xid' ~ '^[0-9]{1,19}$' then (v_data ->> 'xid')::xid8 end,
    case when v_data ->> 'commit_lsn' ~ '^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$' then (v_data ->> 'commit_lsn')::pg_lsn end,
    case when v_data ->> 'commit_idx' ~ '^[0-9]{1,18}$' then (v_data ->> 'commit_idx')::bigint end
$$;

comment on function event_store_private.change_origin(jsonb) is
'The slot, transaction and place in the source''s log that the event of a captured change states; null for a value of '
'the wrong form.';
