-- It reads only what it returns, however long the stream is: the last ten of ten thousand cost as much as the first
-- ten.
-- Example: select version, event, data from read_stream('order', 'o-1')
-- Example: select version, event, data from read_stream('order', 'o-1', v_limit => 10, v_backwards => true)
create or replace function event_store.read_stream(
  v_decider text,
  v_decider_id text,
  v_from_version bigint default null,
  v_limit bigint default 1000,
  v_backwards boolean default false
)
returns setof event_store.versioned_events
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered unsorted once
begin
  if coalesce(v_limit, 0) <= 0 or v_from_version <= 0 or v_backwards is null then
    perform event_store_private.refuse_request(
      format(
        'v_limit is %s, v_from_version %s, v_backwards %s', coalesce(v_limit::text, 'null'), coalesce(v_from_version::text, 'null'),
        coalesce(v_backwards::text, 'null')
      ),
      'v_limit and v_from_version must be at least 1; v_from_version null means from the end that v_backwards says.'
    );
  end if;
  if v_backwards then
    return query
    select e.*
    from event_store.versioned_events e
    where e.decider_id = v_decider_id and e.decider = v_decider and e.version <= coalesce(v_from_version, 9223372036854775807)
    order by e.version desc
    limit v_limit;
  else
    return query
    select e.*
    from event_store.versioned_events e
    where e.decider_id = v_decider_id and e.decider = v_decider and e.version >= coalesce(v_from_version, 1)
    order by e.version
    limit v_limit;
  end if;
end
$$;

comment on function event_store.read_stream(text, text, bigint, bigint, boolean) is
'Returns up to v_limit kept events of the stream (v_decider, v_decider_id) in order, from v_from_version on; with '
'v_backwards the latest first, from v_from_version back. v_from_version null means the first, or the last. None for an '
'unknown stream. MR005 v_limit or v_from_version is not positive, or v_backwards is null.';
revoke all on function event_store.read_stream(text, text, bigint, bigint, boolean) from public;
grant execute on function event_store.read_stream(text, text, bigint, bigint, boolean)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
