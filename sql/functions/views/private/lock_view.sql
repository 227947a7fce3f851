-- The registration of a view for a call that leases something of it, or null while somebody changes the view itself
-- (mode, position, existence): then there is nothing to lease for a moment. Lasts until the transaction ends.
-- Lock first: the registration is read in a later statement.
create or replace function event_store_private.lock_view(
  v_view text,
  v_mode text
)
returns event_store.views
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  if not pg_try_advisory_xact_lock_shared(event_store_private.view_lock_key(v_view)) then
    return null;
  end if;
  return event_store_private.known_view(v_view, v_mode);
end
$$;

comment on function event_store_private.lock_view(text, text) is
'A view''s registration, kept from changing until the transaction ends; null while somebody changes it. MR010, MR012.';
