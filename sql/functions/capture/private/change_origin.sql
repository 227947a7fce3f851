-- A restore takes events as they are, and a forged one must not fail its capture for ever: what cannot be such a value
-- is null, as if the event did not say it.
-- pg_input_is_valid is of PostgreSQL 16, so patterns are asked; each lets through only what its type holds.
-- Without settings of its own, so that Postgres writes it into the statements that ask for it.
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
'The slot, transaction and place in the source''s log that the event of a captured change states; null for what cannot '
'be one.';
