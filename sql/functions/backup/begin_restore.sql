-- In this transaction only, the caller may insert into the tables of restore_tables, and events are stored as they
-- come, even by COPY, without the checks of an append. If it ends without finish_restore, all is undone
-- (require_finished_restore).
-- Example: begin; select begin_restore(); copy event_store.deciders from stdin; …; select finish_restore(…); commit;
create or replace function event_store_platform.begin_restore()
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _table regclass;
  _rows bigint;
  _found text[];
begin
  -- In the order of migrations, which lock tables. Sequencers skip a locked row.
  lock table event_store.views in exclusive mode;
  update event_store.sequencer set sequenced_at = 'infinity'; -- until finish_restore
  lock table event_store.deciders, event_store.event_schemas, event_store.event_upcasts, event_store.purged_streams,
    event_store.events, event_store.event_log, event_store.log_marks, event_store.log_partitions, event_store.checkpoints, event_store.stream_locks, event_store.scheduled_events, event_store.audit_log,
    event_store.producers, event_store.producer_progress, event_store.producer_results, event_store.producer_state,
    event_store.source_generations, event_store.quarantined_changes, event_store.capture_gaps,
    event_store_keys.epochs, event_store_keys.subject_keys, event_store_keys.holders
    in exclusive mode;
  foreach _table in array event_store_private.restore_tables() loop
    -- a thousand are enough to tell: a store in use has millions
    execute format('select count(*) from (select from %s limit 1000) counted', _table) into _rows;
    if _rows > 0 then
      _found := _found || format('%s has %s rows', _table, case _rows when 1000 then '1000 or more' else _rows::text end);
    end if;
  end loop;
  if exists (select from event_store.partitions where high_water_mark > 0) then
    _found := _found || 'its log has begun'::text;
  end if;
  if _found is not null then
    raise exception 'store is not empty'
      using
        errcode = 'MR021',
        detail = format('database %s: %s', current_database(), array_to_string(_found, '; ')),
        hint = 'Restore into a new database: nothing here was changed.';
  end if;

  foreach _table in array event_store_private.restore_tables() loop
    if not has_table_privilege(event_store_private.caller_role(), _table, 'insert') then
      execute format('grant insert on %s to %I', _table, event_store_private.caller_role());
    end if;
  end loop;
end
$$;

comment on function event_store_platform.begin_restore() is
'Lets this transaction load a backup into an empty store: the caller may insert into its tables, and events are not '
'checked. Other transactions cannot append or consume meanwhile, and without finish_restore this one cannot commit. '
'MR021 the store is not empty.';
revoke all on function event_store_platform.begin_restore() from public;
grant execute on function event_store_platform.begin_restore() to event_store_owner;
