-- Each event that the sequencer has seen must have a position, in the log partition of its stream, and follow the event
-- before it, purged or not: it has the next version, names that event as previous_id, is later in the log, and that
-- event is not final. So versions are gapless.
-- Races: all of it is as of one moment. In a store that was restored and not sequenced since, it is unknown what the
-- sequencer has seen.
-- Example: select looked, reached, found, faults from verify_events(0, 50000)
create or replace function event_store_platform.verify_events(
  v_from bigint,
  v_limit bigint
)
returns table (
  looked bigint,
  reached bigint,
  found bigint,
  faults jsonb
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested
declare
  _partitions constant bigint := (select count(*) from event_store.log_partitions);
  _sequencer event_store.sequencer;
  _seen pg_snapshot;
begin
  if coalesce(v_limit, 0) <= 0 or v_from is null then
    perform event_store_private.refuse_request(
      format('v_from is %s, v_limit is %s', coalesce(v_from::text, 'null'), coalesce(v_limit::text, 'null')),
      'State an offset, and look at one event or more.'
    );
  end if;
  select * into _sequencer from event_store.sequencer where singleton order by revision desc limit 1;
  if _sequencer.sequenced_at <> 'infinity' and not event_store_private.has_foreign_ids(_sequencer) then
    _seen := _sequencer.snapshot;
  end if;
  return query
  with stored as materialized (
    select e."offset", e.decider, e.decider_id, e.version, e.previous_id, e.transaction_id
    from event_store.events e
    where e."offset" >= v_from
    order by e."offset"
    limit v_limit
  ), followed as materialized (
    select
      e.*, l.partition, l.position, b.event_id as before_id, b."offset" as before_offset, b.final as before_final,
      k.position as before_position
    from stored e
    left join event_store.event_log l on l."offset" = e."offset"
    left join lateral (
      select x.event_id, x."offset", x.final
      from event_store.events x
      where x.decider_id = e.decider_id and x.decider = e.decider and x.version = e.version - 1
      union all
      select p.last_event_id, p.last_offset, p.final
      from event_store.purged_streams p
      where p.decider_id = e.decider_id and p.decider = e.decider and p.version = e.version - 1
      limit 1
    ) b on true
    left join event_store.event_log k on k."offset" = b."offset"
  ), wrong as materialized (
    select
      f."offset", w.kind,
      format('stream %s of decider %s, version %s, offset %s', to_json(f.decider_id), to_json(f.decider), f.version, f."offset") as place
    from followed f
    cross join lateral (
      values
        ('not_sequenced', f.partition is null and pg_visible_in_snapshot(f.transaction_id, _seen)),
        ('wrong_partition', f.partition <> event_store.stream_partition(f.decider_id, _partitions)),
        ('version_missing', f.version > 1 and f.before_id is null),
        ('chain_broken', f.previous_id is distinct from f.before_id and (f.version = 1 or f.before_id is not null)),
        ('order_inverted', f.before_offset >= f."offset" or f.before_position >= f.position),
        ('after_final', f.before_final)
    ) w(kind, is_wrong)
    where w.is_wrong
  )
  select
    (select count(*) from stored),
    (select max(e."offset") from stored e),
    (select count(*) from wrong),
    (
      select coalesce(jsonb_agg(jsonb_build_array(w.kind, w.place) order by w."offset", w.kind), '[]')
      from (select * from wrong order by "offset", kind limit 20) w
    );
end
$$;

comment on function event_store_platform.verify_events(bigint, bigint) is
'Checks v_limit events from offset v_from on: whether they have positions, and each follows the one before it in its '
'stream, without a gap. Returns how many it checked (none at the end), up to which, how many faults it found, and of up '
'to twenty the kind and the place. MR005 v_from is null, or v_limit is not positive.';
revoke all on function event_store_platform.verify_events(bigint, bigint) from public;
grant execute on function event_store_platform.verify_events(bigint, bigint) to event_store_reader, event_store_owner;
