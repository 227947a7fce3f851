-- Which version of a service gave a view its settings: two versions that run side by side do not undo each other's.

alter table event_store.views add column version int not null default 0;
alter table event_store.views add constraint views_version_is_not_negative check (version >= 0);
comment on column event_store.views.version is
'The version of the program that gave the view its settings; a program of a lower one changes nothing.';
