-- v_fault names the argument that is null, empty or out of range, and its value.
create or replace function event_store_private.refuse_request(
  v_fault text,
  v_hint text
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'request is malformed' using errcode = 'MR005', detail = v_fault, hint = v_hint;
end
$$;

comment on function event_store_private.refuse_request(text, text) is
'Raises MR005 with the fault and what is allowed.';
