-- Dates and times are as in RFC 3339: only days of the calendar, no leap seconds.
create or replace function event_store_private.format_pattern(
  v_format text
)
returns text
language sql
immutable
set search_path = event_store, pg_temp
as $$
  select case v_format
    when 'uuid' then '^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$'
    when 'date' then '^' || d.date || '$'
    when 'date-time' then
      '^' || d.date || '[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])$'
  end
  from (
    select '(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)'
      '|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)' as date
  ) d
$$;

comment on function event_store_private.format_pattern(text) is
'The pattern of a text of a format; null for a format that is not accepted.';
