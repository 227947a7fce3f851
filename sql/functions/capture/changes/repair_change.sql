-- If the key was unknown, later changes of its stream were not held. Once one of them is an event, this change comes
-- too late (MR033).
-- Example: select repair_change(12, '[7]', '{"record": {"id": 7}}')
create or replace function event_store_platform.repair_change(
  v_quarantine_id bigint,
  v_decider_id text,
  v_data jsonb
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _change constant event_store.quarantined_changes := event_store_private.lock_quarantined_change(v_quarantine_id);
  _newer event_store.events;
begin
  if coalesce(v_decider_id, '') = '' or jsonb_typeof(v_data) is distinct from 'object' then
    perform event_store_private.refuse_request(
      format('v_decider_id %L, v_data of type %L', v_decider_id, jsonb_typeof(v_data)), 'The key is a JSON array; the data are an object.'
    );
  end if;
  if _change.decider_id <> v_decider_id then
    perform event_store_private.refuse_request(
      format('change %s is of stream (%s, %s), not %s', v_quarantine_id, _change.decider, _change.decider_id, v_decider_id),
      'The key of a change does not change.'
    );
  end if;
  if _change.decider_id is null then
    select e.* into _newer
    from event_store_private.head_of_stream(v_decider_id, _change.decider) s
    join event_store.events e on e."offset" = s.last_offset
    cross join lateral event_store_private.change_origin(e.data) o
    where case
      -- a row read before or after this change became known; or no change at all
      when num_nulls(o.generation, o.commit_lsn, o.commit_idx) > 0 then s.last_offset > _change.after_offset
      else
        (o.generation, o.commit_lsn, o.commit_idx) > (_change.source_generation, _change.commit_lsn, _change.commit_idx)
    end;
    if found then
      raise exception 'stream has gone on'
        using
          errcode = 'MR033',
          detail = format(
            'change %s is of commit %s; stream (%s, %s) has event_id %s, %s, at offset %s after it', v_quarantine_id,
            coalesce(_change.commit_lsn::text, 'none'), _change.decider, v_decider_id, _newer.event_id, _newer.event, _newer."offset"
          ),
          hint = 'Discard it: discard_change(quarantine_id, reason). Or read the tables anew: restart_capture(capture, reason).';
    end if;
  end if;
  update event_store.quarantined_changes
  set decider_id = v_decider_id, data = v_data, fault = null
  where quarantine_id = v_quarantine_id;
end
$$;

comment on function event_store_platform.repair_change(bigint, text, jsonb) is
'Gives a quarantined change the key v_decider_id and the data v_data that could not be read; requeue_changes then '
'makes it an event. MR005 an argument is malformed, or the key differs; MR033 later changes of its stream are events; '
'MR035 it is not quarantined.';
revoke all on function event_store_platform.repair_change(bigint, text, jsonb) from public;
grant execute on function event_store_platform.repair_change(bigint, text, jsonb) to event_store_owner;
