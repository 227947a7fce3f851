-- Which way the log of a captured source came: a promoted standby goes on from there with other changes.

alter table event_store.captures add column timelines text collate "C";
alter table event_store.captures add constraint captures_timelines_are_a_history check (
  timelines ~ '^([1-9][0-9]* [0-9A-F]{1,8}/[0-9A-F]{1,8}, )*[1-9][0-9]*$'
);
comment on column event_store.captures.timelines is
'The timelines of the source''s log, each but the last with the position where the log left it, such as 1 0/3000000, 2;'
' null where it was not asked yet.';
