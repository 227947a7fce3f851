-- The refusal also lists the leases in force.
create or replace function event_store_private.refuse_lost_lease(
  v_view text,
  v_partition int[],
  v_lease_token bigint[]
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'lease is lost'
    using
      errcode = 'MR011',
      detail = (
        select string_agg(
          format(
            'partition %s: token %s stated, token %s in force%s',
            b.partition, b.token, coalesce(c.lease_token::text, 'none'), coalesce(' for ' || c.lease_owner, ', no lease')
          ),
          '; ' order by b.partition
        )
        from unnest(v_partition, v_lease_token) b(partition, token)
        left join event_store_private.checkpoint_of(v_view, b.partition) c on true
        where c.lease_token is distinct from b.token or c.lease_owner is null
      ),
      hint = 'Drop this batch and claim again; its events are delivered again.';
end
$$;

comment on function event_store_private.refuse_lost_lease(text, int[], bigint[]) is
'Raises MR011 and lists the lost leases.';
