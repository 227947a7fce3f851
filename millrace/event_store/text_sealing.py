"""Personal values in JSON text that many events are stored as: sealed by captures and imports, before they send it."""

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from millrace.errors import InvalidSetting, KeyGone
from millrace.event_store.sealing import Sealing
from millrace.personal.marked_text import people_of
from millrace.personal.values import Key

Text = TypeVar("Text", str, str | None)


class TextSealing(Sealing):
    """The part of a store that seals marked values of JSON texts (`personal.marked_text`)."""

    def seal_texts(self, decider: str, texts: Sequence[Text], places: Iterable[bytes]) -> list[Text]:
        """Return texts with their marked values sealed, with the keys that people have now.

        Text of the same place is sealed the same way each time, until its person is forgotten.

        Raises:
            InvalidSetting: There is no sealer.
            KeyGone: The folder of keys is of another store, or of an earlier epoch.
        """
        people = people_of(filter(None, texts))
        if not people:
            return list(texts)
        if self.sealer is None:
            raise InvalidSetting(
                "Personal values are sealed with the keys of a folder.", hint="Name it in MILLRACE_KEYS."
            )
        keys = self._living_keys(decider, people)
        return [text and self.sealer.sealed_text(text, place, keys) for text, place in zip(texts, places, strict=True)]

    def require_keys(self, decider: str) -> None:
        """Refuse to begin where values of a decider cannot be sealed; raises as `seal_texts`."""
        self._asked_twice(decider, ())

    def _living_keys(self, decider: str, people: Collection[str]) -> dict[str, Key]:
        assert self.sealer is not None
        kept = {each: key for each, key in self.sealer.keys_kept_of(people).items() if key and not key.forgotten}
        # no event is judged by a schema here: ask whether a key was destroyed since it is kept
        living = "select count(*) from event_store.open_keys(%b::text[]) where wrapped is not null"
        if kept and self._value(int, living, ([key.key_id for key in kept.values()],)) < len(kept):
            kept = {}
        asked = [each for each in people if each not in kept]
        return kept | self._asked_twice(decider, asked) if asked else kept

    def _asked_twice(self, decider: str, people: Sequence[str]) -> dict[str, Key]:
        try:
            return self._asked_keys(decider, people)
        except KeyGone:
            # while it is rotated: the sealer took the folder's other file
            return self._asked_keys(decider, people)
