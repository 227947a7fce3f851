-- One event for each log partition: between them there is no order, so each consumer hears it where it reads.
-- Races: it waits for commits that tell changes of the epoch before.
-- Example: select replace_feed('orders', 2, '{order_id}', '{order_id,amount}')
create or replace function event_store_platform.replace_feed(
  v_model text,
  v_version int,
  v_key text[],
  v_columns text[]
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _decider constant text := 'model:' || v_model;
  _partitions constant int := (select count(*) from event_store.log_partitions);
  -- for each log partition the first name that belongs to it
  _streams constant text[] := array(
    select s.id
    from generate_series(0, _partitions - 1) p(number)
    cross join lateral (
      select n.id
      from (select format('@p%s-%s', lpad(p.number::text, 2, '0'), i) as id from generate_series(0, 1000000) i) n
      where event_store.stream_partition(n.id, _partitions) = p.number
      limit 1
    ) s
    order by p.number
  );
  _epoch bigint;
begin
  if not exists (select from read_models.declarations d where d.model = v_model and d.version = v_version) then
    perform event_store_private.refuse_request('there is no such version of the model', 'model_versions has them.');
  end if;
  insert into read_models.feeds as f (model, epoch, tells, key, columns)
  select
    v_model,
    -- a restored store has the events, and not the row
    1 + coalesce((
      select (e.metadata ->> 'feed_epoch')::bigint
      from event_store.events e
      where e.decider_id = _streams[1] and e.decider = _decider
      order by e.version desc
      limit 1
    ), 0),
    true, v_key, v_columns
  on conflict (model) do update set epoch = f.epoch + 1, tells = true, key = excluded.key, columns = excluded.columns
  returning f.epoch into _epoch;
  if not exists (select from event_store.deciders d where d.decider = _decider and d.event = 'replaced') then
    perform event_store_private.lock_deciders();
    perform set_config('event_store.registering', 'on', true);
    insert into event_store.deciders as d (decider, event, event_version, description, owner)
    select _decider, e.event, 1, e.description || ' read model ' || v_model || '.', 'event_store_owner'
    from (
      values
        ('inserted', 'A row came into'), ('updated', 'A row changed in'), ('deleted', 'A row left'),
        ('replaced', 'Many rows changed at once in')
    ) e(event, description)
    on conflict (decider, event, event_version) do update set owner = excluded.owner;
    perform set_config('event_store.registering', '', true);
  end if;
  perform from event_store.append_events((
    select jsonb_agg(jsonb_build_object(
      'decider', _decider, 'decider_id', s.id, 'event', 'replaced', 'event_id', gen_random_uuid(), 'command_id', gen_random_uuid(),
      'data', '{}'::jsonb, 'metadata', jsonb_build_object('feed_epoch', _epoch, 'model_version', v_version)
    ))
    from unnest(_streams) s(id)
  ));
  return _epoch;
end
$$;

comment on function event_store_platform.replace_feed(text, int, text[], text[]) is
'Begins the next epoch of the feed of read model v_model, and returns it: one event `replaced` in each log partition says that '
'the rows are to be read anew, from version v_version with key v_key, and that changes tell v_columns. The first call begins '
'the feed. MR005 there is no such version.';
revoke all on function event_store_platform.replace_feed(text, int, text[], text[]) from public;
grant execute on function event_store_platform.replace_feed(text, int, text[], text[]) to event_store_owner;
