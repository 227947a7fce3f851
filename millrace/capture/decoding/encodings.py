"""Converts text to UTF-8 if the server could not, because a value is not text in its database's encoding."""

from struct import Struct, error

_COLUMNS = Struct(">H")
_COLUMN = Struct(">Ii")
_UINT32 = Struct(">I")
_TEXT = ord("t")
# Python's names of server encodings that differ from Postgres' names. Two have no codec: all but their ASCII
# characters are marked. Bytes of SQL_ASCII are read as UTF-8, as the server does, too.
_CODECS = {
    "SQL_ASCII": "utf-8",
    "EUC_CN": "gb2312",
    "KOI8R": "koi8_r",
    "KOI8U": "koi8_u",
    "EUC_TW": "ascii",
    "MULE_INTERNAL": "ascii",
}
# Characters that Python's codec decodes differently from the server, and the server's characters. A row must not
# change because of the rows around it.
_AS_SERVER = {
    "EUC_JP": str.maketrans("\u301c\u2016\u2212\u00a2\u00a3\u00ac\u00a6", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2\uffe4"),
    "EUC_JIS_2004": str.maketrans("\uffe3\u2015\uffe5\u2985\u2986", "\u203e\u2014\u00a5\uff5f\uff60"),
}
# No text of a server has these two bytes. They precede bytes that are not text in their database's encoding.
NO_TEXT = b"\xff\0"


def codec_of(encoding: str) -> str:
    """Return Python's name of a server's encoding."""
    return _CODECS.get(encoding, encoding.replace("WIN", "cp"))


def recoded_value(value: bytes, codec: str) -> bytes:
    """Return a value in UTF-8; if it is not text in its encoding, its bytes after `NO_TEXT`."""
    if value.isascii():
        return value
    try:
        text = value.decode(codec)
    except UnicodeDecodeError:
        return NO_TEXT + value
    return text.translate(_AS_SERVER.get(codec, {})).encode()


def recoded_message(message: bytes, codec: str) -> bytes:
    """Return a message of pgoutput with its values and names in UTF-8; a malformed one unchanged."""
    if message.isascii():
        return message
    try:
        match message[:1]:
            case b"I" | b"U" | b"D":
                return _rows(message, codec)
            case b"R":
                head = _end_of(message, 2, 5)
                parts = [message[:5], _names(message[5:head], 2, codec), message[head : head + 3]]
                at = head + 3
                while at < len(message):
                    end = _end_of(message, 1, at + 1)
                    names = _names(message[at + 1 : end], 1, codec)
                    parts += (message[at : at + 1], names, message[end : end + _COLUMN.size])
                    at = end + _COLUMN.size
                return b"".join(parts)
            case b"Y":
                return message[:5] + _names(message[5:], 2, codec)
            case b"O":
                return message[:9] + _names(message[9:], 1, codec)
    except (error, IndexError):
        pass
    # the server does not convert messages that a session wrote with pg_logical_emit_message
    return message


def _rows(message: bytes, codec: str) -> bytes:
    parts = [message[:5]]
    at = 5
    while at < len(message):
        (number,) = _COLUMNS.unpack_from(message, at + 1)
        parts.append(message[at : at + 3])
        at += 3
        for _ in range(number):
            if message[at] != _TEXT:
                parts.append(message[at : at + 1])
                at += 1
                continue
            (length,) = _UINT32.unpack_from(message, at + 1)
            at += 5 + length
            value = recoded_value(message[at - length : at], codec)
            parts += (b"t", _UINT32.pack(len(value)), value)
    if at > len(message):
        raise IndexError(at)
    return b"".join(parts)


def _end_of(message: bytes, number: int, at: int) -> int:
    """Return where `number` zero-terminated names end."""
    for _ in range(number):
        at = message.find(b"\0", at) + 1
        if not at:
            raise IndexError
    return at


def _names(message: bytes, number: int, codec: str) -> bytes:
    end = _end_of(message, number, 0)
    names = message[:end].split(b"\0")
    return b"\0".join(recoded_value(name, codec) for name in names) + message[end:]
