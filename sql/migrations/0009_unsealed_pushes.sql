-- Pushes of personal data: whether a view is sent opened values.

alter table event_store.views add column push_unseal boolean not null default false;
comment on column event_store.views.push_unseal is 'Whether personal values are opened in what is pushed.';
