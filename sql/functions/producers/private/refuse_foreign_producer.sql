-- Raises that a producer belongs to a role that the caller is no member of.
create or replace function event_store_private.refuse_foreign_producer(
  v_producer_id text,
  v_partition int,
  v_owner text
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'producer belongs to another role'
    using
      errcode = 'MR045',
      detail = format(
        'producer %L, partition %s, belongs to role %s; %s is no member of it', v_producer_id, v_partition, v_owner, event_store_private.caller_role()
      ),
      hint = 'Grant the role to the login; or let the owner of the producer give it to a role of both: register_producer(producer_id, partition, v_owner => role).';
end
$$;

comment on function event_store_private.refuse_foreign_producer(text, int, text) is
'Raises MR045 and names the producer''s owner.';
