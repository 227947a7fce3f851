-- Once a key is gone, a program that sends the same event again cannot seal its values as before: with the forgotten key
-- it seals nothing, and with a new one, once the subject is admitted again, something else.
create or replace function event_store_private.is_same_data(
  v_stored jsonb,
  v_sent jsonb
)
returns boolean
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _sealed constant text := '"[$]sealed": "[^"]*"';
begin
  return v_stored = v_sent
    or regexp_replace(v_stored::text, _sealed, '"$sealed"', 'g') = regexp_replace(v_sent::text, _sealed, '"$sealed"', 'g')
    -- so both have their sealed values in the same places, and in the same order
    and not exists (
      select
      from rows from (
        jsonb_path_query(v_stored, '$.**."$sealed"'), jsonb_path_query(v_sent, '$.**."$sealed"')
      ) p(stored, sent)
      where p.stored is distinct from p.sent and not exists (
        select from event_store_keys.subject_keys k
        where k.key_id = split_part(p.stored #>> '{}', '.', 2) and k.forgotten_at is not null
      )
    );
end
$$;

comment on function event_store_private.is_same_data(jsonb, jsonb) is
'Whether data that are sent again are those that are stored: apart from what was sealed with a key that is forgotten.';
