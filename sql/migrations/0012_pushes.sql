-- In which form events of a view are pushed.

alter table event_store.views add column push_format text collate "C" not null default 'json';
alter table event_store.views add constraint views_push_format_is_known check (push_format in ('json', 'cloudevents'));
comment on column event_store.views.push_format is
'How events are pushed: json, or cloudevents, the structured mode of CloudEvents 1.0.';
