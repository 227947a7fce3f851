-- Which logins read over HTTP: their tokens, and the sessions of browsers that a token opened.

create table event_store.stream_tokens (
  token_id bigint generated always as identity,
  hash bytea not null,
  session_of bigint,
  name text,
  login name not null,
  made_at timestamptz not null,
  expires_at timestamptz not null,
  revoked_at timestamptz,
  last_used_at timestamptz,
  constraint stream_tokens_pkey primary key (token_id),
  constraint stream_tokens_hash_key unique (hash),
  constraint stream_tokens_session_of_fkey foreign key (session_of) references event_store.stream_tokens (token_id),
  constraint stream_tokens_hash_is_of_sha_256 check (octet_length(hash) = 32),
  constraint stream_tokens_name_fits check (octet_length(name) between 1 and 200)
);
create index stream_tokens_sessions_idx on event_store.stream_tokens (session_of, expires_at) where session_of is not null;
comment on table event_store.stream_tokens is
'The tokens that read over HTTP with the rights of a login, and the short sessions that browsers get for one.';
comment on column event_store.stream_tokens.token_id is 'Rises with time.';
comment on sequence event_store.stream_tokens_token_id_seq is 'Numbers the tokens.';
comment on column event_store.stream_tokens.hash is 'The SHA-256 of the secret, of which the store has nothing else.';
comment on column event_store.stream_tokens.session_of is 'The token that opened it, of a session; null for a token.';
comment on column event_store.stream_tokens.name is 'What it is for, in the operator''s words.';
comment on column event_store.stream_tokens.login is 'The login with the rights that it gives.';
comment on column event_store.stream_tokens.made_at is 'When it was made.';
comment on column event_store.stream_tokens.expires_at is 'From when on it gives nothing.';
comment on column event_store.stream_tokens.revoked_at is 'Since when it gives nothing, as an operator revoked it; null while it is good.';
comment on column event_store.stream_tokens.last_used_at is 'When it was last used, also by a session, to a minute.';
