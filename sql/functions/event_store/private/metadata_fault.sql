-- Metadata are an object with the limits of data. A known key has a text that fits an index. Some keys are reserved for
-- Millrace; all other keys are the caller's.
create or replace function event_store_private.metadata_fault(
  v_metadata jsonb
)
returns text
language sql
stable
as $$
  select case
    when jsonb_typeof(v_metadata) <> 'object' then format('metadata is of type %s, not an object', jsonb_typeof(v_metadata))
    else coalesce(
      (
        select format('%s of metadata is no text of 1 to 1024 bytes', k.name)
        from unnest('{correlation_id,causation_id,message_id,traceparent,user}'::text[]) k(name)
        where v_metadata ? k.name
          and (jsonb_typeof(v_metadata -> k.name) = 'string' and octet_length(v_metadata ->> k.name) between 1 and 1024) is not true
        limit 1
      ),
      (
        select format('%s of metadata is a reserved word', k.name)
        from unnest('{due_at,marks,subject}'::text[]) k(name)
        where v_metadata ? k.name
        limit 1
      ),
      regexp_replace(event_store_private.data_fault(v_metadata), '^data (has|is)', E'metadata \\1')
    )
  end
$$;

comment on function event_store_private.metadata_fault(jsonb) is
'What makes an event''s metadata unfit to be stored, as a sentence; null if nothing.';
