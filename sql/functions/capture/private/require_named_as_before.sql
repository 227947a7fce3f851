-- No later change would belong to such a stream, so it would stay live for ever. v_tables is that of register_capture.
-- The caller holds the capture's lock.
create or replace function event_store_private.require_named_as_before(
  v_capture event_store.captures,
  v_tables jsonb
)
returns void
language plpgsql
volatile -- sees what the caller stored
set search_path = event_store, pg_temp
as $$
declare
  _step constant bigint := 1000;
  _table record;
  _live text;
  _key text;
  _looked bigint;
  _faults text;
begin
  for _table in
    select
      t.element ->> 'decider' as decider, format('%I.%I', t.element ->> 'schema', t.element ->> 'table') as name,
      coalesce(t.element -> 'key_columns' = '[]', false) as nameless, c.decider is not null as known
    from jsonb_array_elements(v_tables) t(element)
    left join event_store.captured_tables c on c.decider = t.element ->> 'decider'
    -- a decider of another capture is refused as such
    where coalesce(c.capture, v_capture.capture) = v_capture.capture
      -- How earlier streams were named is unknown: if a key names the rows now, its backfill ends the others.
      and coalesce(t.element -> 'key_columns' = '[]', false) <> coalesce(c.key_columns = '{}', false)
    order by 1
  loop
    _live := null;
    if exists (
      select from event_store.wal_events w
      where w.source_generation = v_capture.source_generation
        and (w.commit_lsn, w.commit_idx) > (v_capture.emitted_lsn, v_capture.emitted_idx)
        and w.commit_lsn < v_capture.stored_lsn
        and w.decider = _table.decider
    ) then
      _faults := concat_ws('; ', _faults, format('decider %s: changes of it are stored that are no events yet', _table.decider));
      continue;
    end if;
    _key := '';
    loop
      select
        min(l.decider_id collate "C") filter (
          where l.gone and (_table.known or l.decider_id !~ E'^\\[[0-9]+,"[0-9A-F]+/[0-9A-F]+",[0-9]+\\]$')
        ),
        max(l.decider_id collate "C"), count(*)
      into _live, _key, _looked
      from event_store_private.streams_without_rows(v_capture, _table.decider, null, _key, _step) l;
      exit when _live is not null or _looked < _step;
    end loop;
    if _live is not null then
      _faults := concat_ws(
        '; ', _faults,
        format(
          'decider %s has live streams, such as %s of rows that %s; %s the rows of %s now', _table.decider, _live,
          case when _table.nameless then 'a key names' else 'nothing names' end,
          case when _table.nameless then 'nothing names' else 'a key names' end, _table.name
        )
      );
    end if;
  end loop;
  if _faults is not null then
    raise exception 'rows are not named as the streams of their decider are'
      using
        errcode = 'MR034',
        detail = _faults,
        hint = 'Name another decider in the declaration of the table. What was captured until now stays under this one.';
  end if;
end
$$;

comment on function event_store_private.require_named_as_before(event_store.captures, jsonb) is
'Refuses tables with rows that would be named differently from the live streams of their deciders: by a key, or by '
'nothing. MR034 there are such tables.';
