-- Remedies are commands, and a view's name may be any text.
create or replace function event_store_private.shell_word(
  v_text text
)
returns text
language sql
immutable
as $$
  select case when v_text ~ '^[A-Za-z0-9_@%+=:,./-]+$' then v_text else '''' || replace(v_text, '''', '''"''"''') || '''' end
$$;

comment on function event_store_private.shell_word(text) is 'A text quoted so that a shell takes it for one word.';
