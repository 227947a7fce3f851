-- fstore-sql names a stream by a UUID. Each function of this list gets a form that takes v_decider_id as one. The form
-- calls the one for text and has the same arguments, result and callers. Applied after the functions.
-- A form that only reads is inlined into its caller's query. One that writes is in plpgsql: SQL would plan it at each
-- call, and an append would take 40 to 70 us longer.
do $uuid_forms$
declare
  _form record;
begin
  for _form in
    select
      format('event_store.%I', p.proname) as name,
      replace(pg_get_function_arguments(p.oid), 'v_decider_id text', 'v_decider_id uuid') as arguments,
      replace(pg_get_function_identity_arguments(p.oid), 'v_decider_id text', 'v_decider_id uuid') as signature,
      pg_get_function_result(p.oid) as result,
      case p.provolatile
        when 's' then 'language sql stable as $$ select * from %s(%s) $$'
        else 'language plpgsql volatile set search_path = event_store, pg_temp as $$ begin return query select * from %s(%s); end $$'
      end as body,
      replace(array_to_string(p.proargnames[1:p.pronargs], ', '), 'v_decider_id', 'v_decider_id::text') as stated,
      callers.roles
    from pg_proc p
    cross join lateral (
      select string_agg(r.rolname, ', ') as roles
      from aclexplode(p.proacl) a
      join pg_roles r on r.oid = a.grantee
      where r.rolname ~ '^event_store_'
    ) callers
    where p.pronamespace = 'event_store'::regnamespace
      and p.proname in (
        'append_event', 'get_events', 'get_last_event', 'read_stream', 'stream_head',
        'ack_event', 'nack_event', 'schedule_nack_event', 'fail_event', 'extend_lock'
      )
      and pg_get_function_identity_arguments(p.oid) like '%v_decider_id text%'
      and callers.roles is not null -- a form without callers is of an older version, and goes: roles.sql revoked its grants
  loop
    execute format('create or replace function %s(%s) returns %s ', _form.name, _form.arguments, _form.result)
      || format(_form.body, _form.name, _form.stated);
    execute format('comment on function %s(%s) is %L', _form.name, _form.signature, 'Does the same for a UUID as v_decider_id.');
    execute format('revoke all on function %s(%s) from public', _form.name, _form.signature);
    execute format('grant execute on function %s(%s) to %s', _form.name, _form.signature, _form.roles);
  end loop;
end
$uuid_forms$;
