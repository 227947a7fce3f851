-- Only here the rules are tried one by one. v_which says which event of a batch it is.
create or replace function event_store_private.refuse_data(
  v_decider text,
  v_event text,
  v_event_version bigint,
  v_data jsonb,
  v_which text default ''
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _found record;
  _key text;
begin
  select v.fault, v.pointer into _found
  from event_store.deciders d
  join event_store.event_schemas s using (decider, event, event_version)
  -- what is personal is quoted nowhere
  cross join lateral event_store_private.data_violation(s.checks, v_data, v_quotes => not d.seals) v
  where s.decider = v_decider and s.event = v_event and s.event_version = v_event_version;
  if _found.fault is null then
    _key := event_store_private.unknown_key(v_data);
    raise exception 'data are sealed with a key that is gone'
      using
        errcode = 'MR055',
        detail = format('%sevent %s version %s of decider %s: key %s is forgotten, or of another store',
          v_which, v_event, v_event_version, v_decider, _key),
        hint = 'Ask for the subject''s key again and seal the data again; a client with a Sealer does so by itself.';
  end if;
  raise exception 'data do not fit the schema of the event'
    using
      errcode = 'MR050',
      detail = format(
        '%sevent %s version %s of decider %s: %s, by %s of the schema', v_which, v_event, v_event_version, v_decider, _found.fault,
        coalesce(nullif(_found.pointer, ''), 'the whole')
      ),
      hint = 'Correct the data, or register another version of the event with a schema that takes them; nothing was stored.';
end
$$;

comment on function event_store_private.refuse_data(text, text, bigint, jsonb, text) is
'Raises MR050 with the value and the schema''s rule that it does not meet, or MR055 with the key that is gone.';
