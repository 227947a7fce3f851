-- What pushes of a view are signed with.

create table event_store.push_secrets (
  view text collate "C" not null,
  secret text collate "C" not null,
  made_at timestamptz not null,
  retires_at timestamptz,
  constraint push_secrets_pkey primary key (view, secret),
  constraint push_secrets_view_fkey foreign key (view) references event_store.views (view) on delete cascade,
  constraint push_secrets_secret_is_one_of_standard_webhooks check (secret ~ '^whsec_[A-Za-z0-9+/]{32,86}={0,2}$')
);
create unique index push_secrets_current_key on event_store.push_secrets (view) where retires_at is null;
comment on table event_store.push_secrets is
'What pushes of a view are signed with: the current secret, and the one before while receivers change over.';
comment on column event_store.push_secrets.view is 'The view.';
comment on column event_store.push_secrets.secret is 'The secret, as Standard Webhooks writes it: whsec_ and base64.';
comment on column event_store.push_secrets.made_at is 'When it became the current one.';
comment on column event_store.push_secrets.retires_at is 'Until when pushes are signed with it, too; null for the current one.';
