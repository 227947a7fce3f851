"""Event ids of captured rows: no two places give the same one, and they rise as events do."""

from uuid import RFC_4122, UUID

from hypothesis import given
from hypothesis import strategies as st

from millrace.resources.capture.decoding.fields import packed_id, packed_ids

PLACES = st.tuples(st.booleans(), st.integers(0, 2**21 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**36 - 1))


def id_of(place: tuple[bool, int, int, int]) -> str:
    backfills, generation, at, number = place
    return packed_id(packed_ids(at, generation=generation, backfills=backfills), number)


@given(PLACES, PLACES)
def test_ids_are_in_the_order_of_their_places_and_no_two_places_have_the_same(
    one: tuple[bool, int, int, int], other: tuple[bool, int, int, int]
) -> None:
    assert (id_of(one) < id_of(other)) == (one < other)
    assert (id_of(one) == id_of(other)) == (one == other)


@given(PLACES)
def test_an_id_is_a_uuid_of_version_8_as_postgres_writes_it(place: tuple[bool, int, int, int]) -> None:
    found = UUID(id_of(place))
    assert (found.version, found.variant, str(found)) == (8, RFC_4122, id_of(place))
