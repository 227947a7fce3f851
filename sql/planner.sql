-- Planner settings of functions. A function's body begins with its kinds, such as "planner: indexed once"; each kind
-- becomes settings here. Applied after the functions.
--   indexed     by index, whatever statistics say: they may be from when the tables were empty. So little is read that
--               compiling would take longer than running
--   ordered     by an index in its order: a bitmap scan would fetch all rows, or all versions of a row, and sort them
--   nested      row by row, from few rows to few others
--   unsorted    rows that an index returns in order are not sorted
--   once        planned once in a session: planning takes longer than running
--   each        planned for the arguments of each call
--   uncompiled  reads much at times, but compiling never pays
do $planner$
declare
  _function record;
begin
  for _function in
    select p.oid::regprocedure as name, string_agg(coalesce(s.settings, 'unknown kind ' || k.kind), ' ') as settings
    from pg_proc p
    cross join lateral regexp_split_to_table(substring(p.prosrc from '^\n-- planner: ([^\n]*)'), ' ') k(kind)
    left join (
      values
        ('indexed', 'set enable_seqscan = off set jit = off'),
        ('ordered', 'set enable_bitmapscan = off'),
        ('nested', 'set enable_hashjoin = off set enable_mergejoin = off'),
        ('unsorted', 'set enable_sort = off'),
        ('once', 'set plan_cache_mode = force_generic_plan'),
        ('each', 'set plan_cache_mode = force_custom_plan'),
        ('uncompiled', 'set jit = off')
    ) s(kind, settings) on s.kind = k.kind
    where p.pronamespace::regnamespace::text in ('event_store', 'event_store_platform', 'event_store_private')
    group by p.oid
  loop
    execute format('alter function %s %s', _function.name, _function.settings);
  end loop;
end
$planner$;
