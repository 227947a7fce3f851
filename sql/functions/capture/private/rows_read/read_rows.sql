-- The arrays correspond by order, which require_read_rows has checked. v_data are texts of JSON, null if v_faults gives
-- a reason; v_faults may be empty, which means no faults. Raises MR005 for a text that is not JSON.
create or replace function event_store_private.read_rows(
  v_decider_ids text[],
  v_event_ids uuid[],
  v_command_id uuid,
  v_data text[],
  v_faults text[]
)
returns event_store_private.read_row[]
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
begin
  return array(
    select row(r.number, r.decider_id, r.event_id, v_command_id, nullif(r.data::jsonb, 'null'), r.fault)::event_store_private.read_row
    from unnest(v_decider_ids, v_event_ids, v_data, v_faults) with ordinality r(decider_id, event_id, data, fault, number)
    order by r.number
  );
exception when data_exception then
  perform event_store_private.refuse_request(sqlerrm, 'v_data are texts of JSON. Nothing of the chunk was stored.');
end
$$;

comment on function event_store_private.read_rows(text[], uuid[], uuid, text[], text[]) is
'Rows of a captured table, from an array for each field.';
