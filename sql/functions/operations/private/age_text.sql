-- How long ago a time was, in words that one reads at a glance.
create or replace function event_store_private.age_text(
  v_since timestamptz
)
returns text
language sql
volatile -- the clock is
as $$
  select case
    when a.s >= 172800 then format('%s days', div(a.s, 86400))
    when a.s >= 7200 then format('%s hours', div(a.s, 3600))
    when a.s >= 120 then format('%s minutes', div(a.s, 60))
    else format('%s seconds', div(a.s, 1))
  end
  from (select greatest(extract(epoch from event_store_private.clock() - v_since), 0) as s) a
$$;

comment on function event_store_private.age_text(timestamptz) is 'How long ago a time was, in words.';
