-- Raises that a schema is not accepted: which part of it, where, and what is accepted.
create or replace function event_store_private.refuse_schema(
  v_fault text
)
returns void
language sql
immutable
as $$
  select event_store_private.refuse_request(
    v_fault,
    'Write it with what is taken, or leave it out: type, enum, const, properties, required, additionalProperties, items, '
    'minItems, maxItems, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength, pattern, '
    'format, anyOf, allOf, oneOf, not, $ref within the schema, and annotations.'
  )
$$;

comment on function event_store_private.refuse_schema(text) is 'Raises MR005 with the fault of a schema and what is accepted.';
