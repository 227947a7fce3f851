-- A view may stand beyond the end of its log partition only where seek_view let it wait there.
-- Races: all of it is as of one moment.
-- Example: select looked, found, faults from verify_views()
create or replace function event_store_platform.verify_views()
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
-- planner: uncompiled
begin
  return query
  with wrong as materialized (
    select 'checkpoint_without_view' as kind, format('view %s, log partition %s', to_json(c.view), c.partition) as place
    from event_store.checkpoints c
    where not exists (select from event_store.views v where v.view = c.view)
    union all
    select 'lock_without_view', format('view %s, stream %s of decider %s', to_json(k.view), to_json(k.decider_id), to_json(k.decider))
    from event_store.stream_locks k
    where not exists (select from event_store.views v where v.view = k.view)
    union all
    select 'checkpoint_missing', format('view %s, log partition %s', to_json(v.view), p.partition)
    from event_store.views v
    cross join event_store.log_partitions p
    where not exists (select from event_store.checkpoints c where c.view = v.view and c.partition = p.partition)
    union all
    select
      'checkpoint_beyond_log',
      format('view %s, log partition %s: position %s, and the log ends at %s', to_json(b.view), b.partition, b.position, b.high_water_mark)
    from event_store_platform.views_beyond_log() b
    where not exists (
      select from event_store.audit_log a
      where a.operation = 'seek_view' and a.view = b.view and (a.detail ->> 'partition')::int = b.partition
        and (a.detail ->> 'to_position')::bigint = b.position
    )
    union all
    select
      'mark_beyond_log',
      format('moment %s, log partition %s: position %s, and the log ends at %s', m.mark_id, p.partition, n.mark, p.high_water_mark)
    from event_store.log_marks m
    cross join lateral unnest(m.marks) with ordinality n(mark, number)
    join event_store.partitions p on p.partition = n.number - 1
    where n.mark > p.high_water_mark
    union all
    select
      'archive_beyond_log',
      format('log partition %s: archived up to %s, and the log ends at %s', p.partition, p.archived_position, p.high_water_mark)
    from event_store.partitions p
    where p.archived_position > p.high_water_mark
    union all
    select 'model_without_view', format('read model %s, version %s, view %s', d.model, d.version, to_json(d.view))
    from read_models.declarations d
    where not exists (select from event_store.views v where v.view = d.view)
  )
  select
    (select count(*) from event_store.checkpoints) + (select count(*) from event_store.stream_locks),
    null::bigint,
    (select count(*) from wrong),
    (
      select coalesce(jsonb_agg(jsonb_build_array(w.kind, w.place) order by w.kind, w.place), '[]')
      from (select *, row_number() over (partition by kind order by place) as number from wrong) w
      where w.number <= 20
    );
end
$$;

comment on function event_store_platform.verify_views() is
'Verifies checkpoints, locks, recorded moments, the mark of the archive and versions of read models: whether their views '
'are there, and whether they end with the log. Returns how many checkpoints and locks there are, how many faults it found, '
'and of up to twenty of each kind the kind and the place; reached is null.';
revoke all on function event_store_platform.verify_views() from public;
grant execute on function event_store_platform.verify_views() to event_store_reader, event_store_owner;
