-- Raises what is wrong with the registration of a view.
create or replace function event_store.refuse_registration(
  v_view text,
  v_fault text
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'view registration is malformed'
    using errcode = 'MR005', detail = format('view %L: %s', v_view, v_fault), hint = 'Correct it; nothing was registered or changed.';
end
$$;

comment on function event_store.refuse_registration(text, text) is 'Raises MR005 and says what is wrong with a view.';
