"""Reads the size that each page of a Parquet file states: Arrow allocates as much before it decodes the page.

Arrow goes by these sizes, not by the footer's. This reads only the part of Thrift's compact protocol that they need.
"""

from collections.abc import Iterator
from contextlib import suppress
from io import SEEK_END
from typing import BinaryIO

# nearly all headers fit the first size; Arrow writes no statistics into a header that would need more than the second
_READS = (2**10, 2**20)
# numbers of the fields of PageHeader
_UNCOMPRESSED, _COMPRESSED = 2, 3


class UnreadableHeader(ValueError):
    """A page has no header that Arrow would read."""


def page_sizes(file: BinaryIO, begin: int, length: int) -> Iterator[int]:
    """Yield the decompressed size in bytes of each page of a column chunk, as its header states it.

    Raises:
        UnreadableHeader: There is no such page.
    """
    end = begin + length
    while begin < end:
        header = _header(file, begin)
        yield header.uncompressed
        begin += header.length + header.compressed


def _header(file: BinaryIO, begin: int) -> "_Header":
    if 0 <= begin < file.seek(0, SEEK_END):
        for most in _READS:
            file.seek(begin)
            with suppress(IndexError):
                return _Header(file.read(most))
    raise UnreadableHeader(f"There is no header of a page at byte {begin:,}.")


class _Header:
    """The header at the beginning of some bytes; IndexError if it is longer than these."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = 0
        self.uncompressed = self.compressed = -1
        for field, kind in self._fields():
            if field in {_UNCOMPRESSED, _COMPRESSED} and kind in {4, 5, 6}:
                # of a repeated field the last one counts, as it does for Arrow
                if field == _UNCOMPRESSED:
                    self.uncompressed = self._signed()
                else:
                    self.compressed = self._signed()
            else:
                self._skip(kind, 16)
        if self.uncompressed < 0 or self.compressed < 0:
            raise UnreadableHeader("The header of a page states no size.")

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the kind of each field of a struct; the caller skips its value."""
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            yield field, head & 15

    def _byte(self) -> int:
        self.length += 1
        return self._data[self.length - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise UnreadableHeader("A number in the header of a page has no end.")

    def _signed(self) -> int:
        value = self._unsigned()
        return -(value >> 1) - 1 if value & 1 else value >> 1

    def _skip(self, kind: int, depth: int) -> None:
        if depth == 0:
            raise UnreadableHeader("The header of a page is nested deeper than any.")
        if kind == 3:
            self.length += 1
        elif kind in {4, 5, 6}:
            self._unsigned()
        elif kind == 7:
            self.length += 8
        elif kind == 8:
            size = self._unsigned()
            self.length += size
        elif kind == 12:
            for _, inner in self._fields():
                self._skip(inner, depth - 1)
        elif kind not in {1, 2}:  # a header has neither lists nor maps
            raise UnreadableHeader(f"The header of a page has a field of kind {kind}.")
