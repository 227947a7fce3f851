"""Text in other encodings is converted as the server converts it, character by character."""

from itertools import product

import psycopg

from millrace.capture.decoding.encodings import NO_TEXT, codec_of, recoded_value

_READ = """
create function pg_temp.converted(v_bytes bytea, v_encoding text) returns bytea language plpgsql as $$
begin
  return convert(v_bytes, v_encoding, 'UTF8');
exception when character_not_in_repertoire or untranslatable_character then
  return null;
end $$
"""
_HIGH = range(0xA1, 0xFF)


def test_no_character_is_read_as_another_one_than_the_server_reads(dsn: str) -> None:
    singles = [bytes([byte]) for byte in range(0x80, 0x100)]
    pairs = [bytes(pair) for pair in product(_HIGH, _HIGH)]
    triples = [bytes([0x8F, *pair]) for pair in product(_HIGH, _HIGH)]
    with psycopg.connect(dsn) as server:
        server.execute(_READ)
        names = server.execute(
            "select pg_encoding_to_char(n) from generate_series(0, 34) n"
            " where pg_encoding_to_char(n) not in ('', 'SQL_ASCII', 'UTF8', 'MULE_INTERNAL')"
        ).fetchall()
        compared = 0
        for (name,) in names:
            texts = {"EUC_JP": pairs + triples, "EUC_JIS_2004": pairs, "EUC_KR": pairs, "EUC_CN": pairs}.get(
                name, singles
            )
            found = server.execute("select b, pg_temp.converted(b, %s) from unnest(%s::bytea[]) b", (name, texts))
            for text, converted in found:
                ours = recoded_value(text, codec_of(name))
                if converted is not None and not ours.startswith(NO_TEXT):
                    compared += 1
                    assert ours == converted, (name, text)
    # most characters of 26 code pages and of four large encodings
    assert compared > 30000
