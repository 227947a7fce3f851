-- The last two parts of a value that was sealed for a forgotten person are 0: nothing of it was kept.
create or replace function event_store_private.sealed_pattern()
returns text
language sql
immutable
as $$
  select '^1[.][A-Za-z0-9_-]{22}[.](?:[A-Za-z0-9_-]{22}[.][A-Za-z0-9_-]+|0[.]0)$'
$$;

comment on function event_store_private.sealed_pattern() is
'The pattern of a sealed value: 1.<key_id>.<nonce>.<ciphertext>, as base64url.';
