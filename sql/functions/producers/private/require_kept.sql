-- Refuses a value or a result beyond the limits of an event's data (data_fault).
create or replace function event_store_private.require_kept(
  v_what text,
  v_value jsonb
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _fault text;
begin
  -- as in event_fault, which gives the reason
  if pg_column_size(v_value) > 700 or octet_length(v_value::text) > 900 or pg_column_compression(v_value) is not null then
    _fault := event_store_private.data_fault(v_value);
    if _fault is not null then
      perform event_store_private.refuse_request(
        format('%s: %s', v_what, _fault), 'It is kept for ever: keep a reference to what is large.'
      );
    end if;
  end if;
end
$$;

comment on function event_store_private.require_kept(text, jsonb) is
'MR005 unless a value or a result keeps the limits of an event''s data.';
