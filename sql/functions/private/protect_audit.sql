-- UPDATE, DELETE and TRUNCATE of audit_log are refused to every role, including the role that migrated, and no setting
-- allows them. Only the store's functions insert, and a restore.
create or replace function event_store_private.protect_audit()
returns trigger
language plpgsql
set search_path = event_store, pg_temp
as $$
begin
  raise exception '% of %.% is forbidden', lower(tg_op), tg_table_schema, tg_table_name
    using
      errcode = 'MR006',
      detail = 'The audit log is never changed or removed.',
      hint = 'Do what corrects it: that is written down, too.';
end
$$;

comment on function event_store_private.protect_audit() is 'Trigger: raises MR006.';

create or replace trigger protect_audit
before update or delete or truncate on event_store.audit_log
for each statement execute function event_store_private.protect_audit();
comment on trigger protect_audit on event_store.audit_log is 'Keeps what was audited.';
