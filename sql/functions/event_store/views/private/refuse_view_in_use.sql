-- Raises that a view cannot be changed now, and why.
create or replace function event_store_private.refuse_view_in_use(
  v_view text,
  v_used_by text
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'view is in use'
    using
      errcode = 'MR017',
      detail = format('view %L: %s', v_view, v_used_by),
      hint = 'Stop its consumers (enable_view(view, false) gives them nothing more), wait until their leases end, and try again.';
end
$$;

comment on function event_store_private.refuse_view_in_use(text, text) is 'Raises MR017 and says what uses the view.';
