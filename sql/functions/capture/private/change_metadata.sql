-- The source's transaction gave these annotations: they tell what led to the change.
create or replace function event_store_private.change_metadata(
  v_data jsonb
)
returns jsonb
language sql
stable
as $$
  select case
    -- false, and not null, without annotations: after null the rest would be evaluated, too
    when v_data ? 'annotations' and jsonb_typeof(v_data -> 'annotations') = 'object' and v_data -> 'annotations' <> '{}'
      and event_store_private.metadata_fault(v_data -> 'annotations') is null
    then v_data -> 'annotations'
  end
$$;

comment on function event_store_private.change_metadata(jsonb) is
'The annotations of a change as metadata of its event; null if there are none that metadata may hold.';
