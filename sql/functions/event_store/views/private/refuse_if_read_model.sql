-- A read model's rows belong to its view's position: moving or removing one without the other would make them wrong.
create or replace function event_store_private.refuse_if_read_model(
  v_view text
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _model text := (select model from read_models.declarations where view = v_view limit 1);
begin
  if _model is not null then
    raise exception 'view belongs to a read model'
      using
        errcode = 'MR019',
        detail = format('view %L is where read model %s stands', v_view, _model),
        hint = case
          when exists (select from read_models.as_of where name = _model) or exists (select from read_models.diffs where name = _model)
          then format('It is of a moment, or of a comparison. Remove it: millrace view remove %s', _model)
          else format('Materialize its log partitions to rebuild them, or run: millrace view reset %s', _model)
        end;
  end if;
end
$$;

comment on function event_store_private.refuse_if_read_model(text) is
'Raises MR019 if the view is that of a read model.';
