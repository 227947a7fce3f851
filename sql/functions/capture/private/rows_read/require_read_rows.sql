-- Each array has one entry per row, and v_faults may be empty. An entry's content is checked when it becomes an event.
create or replace function event_store_private.require_read_rows(
  v_decider_ids text[],
  v_event_ids uuid[],
  v_command_id uuid,
  v_data text[],
  v_faults text[]
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  if (
    cardinality(v_decider_ids) = cardinality(v_event_ids)
    and cardinality(v_data) = cardinality(v_event_ids)
    and cardinality(v_faults) in (0, cardinality(v_event_ids))
    and v_command_id is not null
  ) is not true then
    perform event_store_private.refuse_request(
      format(
        'v_decider_ids has %s entries, v_event_ids %s, v_data %s, v_faults %s, v_command_id is %L',
        coalesce(cardinality(v_decider_ids)::text, 'no'), coalesce(cardinality(v_event_ids)::text, 'no'),
        coalesce(cardinality(v_data)::text, 'no'), coalesce(cardinality(v_faults)::text, 'no'), v_command_id
      ),
      'State an entry of each for each row, and v_command_id; v_faults may be empty.'
    );
  end if;
end
$$;

comment on function event_store_private.require_read_rows(text[], uuid[], uuid, text[], text[]) is
'Refuses rows of a captured table with arrays that do not fit together. MR005.';
