-- No stored event changes: upcast, and other readers, apply the moves in their order. A version that is registered here
-- gets the description of the one before. It has its upcast until an operator withdraws it; repeating the same one
-- waits for no other session.
-- Upcasts decide what every reader gets of stored data. So only members of the decider's owner register them, or else
-- of the role that registered the event. No move makes data longer than its own text is: the moves of an event are
-- bounded in all, and so is their result.
-- Example: select * from register_event_upcast('order', 'order_placed', 2, '[{"move": "drop", "path": ["note"]}]')
create or replace function event_store.register_event_upcast(
  v_decider text,
  v_event text,
  v_to_version bigint,
  v_moves jsonb
)
returns table (
  decider text,
  event text,
  to_version bigint,
  digest text
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _digest constant text := encode(sha256(convert_to(v_moves::text, 'UTF8')), 'hex');
  _fault constant text := case
    when v_to_version is null or v_to_version < 2 then format('v_to_version is %s', coalesce(v_to_version::text, 'null'))
    else event_store_private.moves_fault(v_moves)
  end;
  _known text;
  _missing bigint;
  _moves jsonb; -- those of all versions
  _keys bigint;
begin
  if _fault is not null then
    perform event_store_private.refuse_request(
      _fault,
      'An upcast leads to version 2 or above by at most 100 moves of 65536 bytes as text. Write each as {"move": "rename", '
      '"path": [...], "to": [...]} with "to" outside of "path", or with move "default" and "value"; "drop"; "cast" and '
      '"type", which is string, number, integer or boolean; "values" and "values"; "scale" and "power", a whole number from '
      '-18 to 18 and not 0. Paths are lists of 1 to 32 keys.'
    );
  end if;
  -- the rights and the names
  perform event_store.register_decider_event(
    v_decider, v_event,
    coalesce(
      (
        select d.description from event_store.deciders d
        where d.decider = v_decider and d.event = v_event and d.event_version < v_to_version
        order by d.event_version desc limit 1
      ), ''
    ), v_to_version
  );
  for _attempt in 1..2 loop -- before and after other sessions are locked out
    if exists (select from event_store.captured_tables c where c.decider = v_decider) then
      perform event_store_private.refuse_captured_decider(v_decider);
    end if;
    select u.digest into _known
    from event_store.event_upcasts u
    where u.decider = v_decider and u.event = v_event and u.to_version = v_to_version;
    if _known <> _digest then
      raise exception 'event has another upcast'
        using
          errcode = 'MR052',
          detail = format(
            'event %s of decider %s has the upcast to version %s with digest %s, not %s', v_event, v_decider,
            v_to_version, _known, _digest
          ),
          hint = 'Register another version of the event, and the upcast to it.';
    end if;
    exit when _known is not null or _attempt = 2;
    perform event_store_private.bound_idle_transaction();
    perform event_store_private.lock_deciders();
  end loop;
  if _known is null then
    perform event_store_private.require_registrar(v_decider, v_event);
    -- from the first version on, the next one that follows it or an upcast
    select min(n.version) into _missing
    from (
      select min(d.event_version) + 1 as version
      from event_store.deciders d
      where d.decider = v_decider and d.event = v_event and d.event_version < v_to_version
      union all
      select u.to_version + 1 from event_store.event_upcasts u
      where u.decider = v_decider and u.event = v_event and u.to_version < v_to_version
    ) n
    where n.version < v_to_version and not exists (
      select from event_store.event_upcasts u
      where u.decider = v_decider and u.event = v_event and u.to_version = n.version
    );
    if _missing is not null then
      raise exception 'an upcast to a version before is missing'
        using
          errcode = 'MR053',
          detail = format('event %s of decider %s has no upcast to version %s', v_event, v_decider, _missing),
          hint = format('Register the upcast to version %s first; without moves ([]) data stay as they are.', _missing);
    end if;
    select jsonb_agg(m.move), sum(jsonb_array_length(m.move -> 'to')) into _moves, _keys
    from (
      select jsonb_array_elements(u.moves) as move from event_store.event_upcasts u where u.decider = v_decider and u.event = v_event
      union all
      select jsonb_array_elements(v_moves)
    ) m;
    if jsonb_array_length(_moves) > 1000 or octet_length(_moves::text) > 65536 or _keys > 500 then
      perform event_store_private.refuse_request(
        format(
          'all upcasts of event %s of decider %s would have %s moves, %s bytes as text, and renames to %s keys', v_event,
          v_decider, jsonb_array_length(_moves), octet_length(_moves::text), coalesce(_keys, 0)
        ),
        'All upcasts of an event have at most 1000 moves, 65536 bytes as text, and renames to 500 keys. Give the new shape another '
        'name: as an event of its own.'
      );
    end if;
    insert into event_store.event_upcasts (decider, event, to_version, moves, digest)
    values (v_decider, v_event, v_to_version, v_moves, _digest)
    on conflict do nothing;
    if not found then
      raise exception 'an upcast is registered by a transaction that this one cannot see'
        using errcode = 'serialization_failure', hint = 'Repeat the transaction.';
    end if;
    if event_store_private.personal_fault(v_decider, v_event, v_to_version) is not null then
      perform event_store_private.refuse_request(
        'of v_moves: ' || event_store_private.personal_fault(v_decider, v_event, v_to_version),
        'A personal field may be dropped, or renamed to one that is personal, too.'
      );
    end if;
    perform event_store_private.audit(
      'register_event_upcast', null, null,
      jsonb_build_object('decider', v_decider, 'event', v_event, 'to_version', v_to_version, 'digest', _digest)
    );
  end if;
  return query select v_decider, v_event, v_to_version, _digest;
end
$$;

comment on function event_store.register_event_upcast(text, text, bigint, jsonb) is
'Sets the moves that turn data of the version before into data of v_to_version, and returns their digest. An '
'unregistered version is registered. The same moves again change nothing. MR005 the moves are malformed or too many, or a name is '
'empty or too long; MR034 the decider belongs to a capture; MR046 the decider belongs to another role, or another one '
'registered the event; MR052 the version has another '
'upcast; MR053 an upcast to a version before is missing.';
revoke all on function event_store.register_event_upcast(text, text, bigint, jsonb) from public;
grant execute on function event_store.register_event_upcast(text, text, bigint, jsonb)
to event_store_writer, event_store_owner;
