-- How old an event may become before its view is late: `standing` judges all views by it.

alter table event_store.views add column max_lag_s bigint not null default 300;
alter table event_store.views add constraint views_max_lag_is_not_negative check (max_lag_s >= 0);
comment on column event_store.views.max_lag_s is
'How old an event that the view wants and has not may become before the view is late, in seconds.';
