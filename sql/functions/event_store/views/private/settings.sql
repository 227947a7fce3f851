-- A URL may hold a secret, in its user, its path or its query. The hash tells URLs apart.
create or replace function event_store_private.settings(
  v_view event_store.views
)
returns jsonb
language sql
stable
as $$
  select to_jsonb(v_view) - 'view' - 'created_at' - 'updated_at' - 'start_at' - 'enabled' || jsonb_build_object(
    'edge_function_url',
    regexp_replace(v_view.edge_function_url, '^([^:/]*://)?([^/?#]*@)?([^/?#]*).*$', E'\\1\\3')
      || ' (' || left(encode(sha256(convert_to(v_view.edge_function_url, 'UTF8')), 'hex'), 12) || ')'
  )
$$;

comment on function event_store_private.settings(event_store.views) is
'The settings of a view as the audit log keeps them: of a URL the host and a hash.';
