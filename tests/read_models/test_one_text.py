"""Given a text, when a Spark column, a fold, an import or SQL reads it, then the same value, or a refusal."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import psycopg

from millrace.event_store.platform import PlatformStore
from millrace.importer.times import TimeForm
from millrace.read_models.declared.column_types import exact, misread, refusal, typed
from tests.support.factories import ARABIC, FULL_WIDTH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
PART = NOON.replace(microsecond=123456)
MONEY, TINY = "decimal(18,2)", "decimal(38,36)"
# a type, a text, and its value (None: the text is refused)
TEXTS: list[tuple[str, str, object]] = [
    *(("timestamp", f"2024-02-29 {text}", NOON) for text in ("12:00", "12:00:00", "12:00:00.000", "12:00Z", "12:00 UTC")),
    *(("timestamp", f"2024-02-29T{text}", NOON) for text in ("12:00:00GMT", "14:00+02", "13:30 +0130", "2:00-10:00")),
    *(("timestamp", text, NOON) for text in ("2024-2-29 12:00", " 2024-02-29 12:00 ", "2024-03-01T03:59+15:59")),
    *(("timestamp", f"2024-02-29 12:00:00.123456{finer}", PART) for finer in ("", "000", "Z", " +00:00")),
    ("timestamp", "2024-02-29T12:00:00.1", NOON.replace(microsecond=100000)),
    ("timestamp", "2024-02-29", NOON.replace(hour=0)),
    ("timestamp", "0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ("timestamp", "9999-12-31 23:59:59.999999", datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ("timestamp", "1582-10-10 00:00", datetime(1582, 10, 10, tzinfo=UTC)),
    *(("timestamp", text, None) for text in ("", "now", "12:00", "T12:00", "2024", "2024-02", "20240229", "1709200000")),
    *(("timestamp", text, None) for text in ("17/06/09", "17/06/09 20:10:40", "10-11-12", "10-11-12 10:00")),
    *(("timestamp", f"2024-02-29 12:00 {zone}", None) for zone in ("BST", "CET", "Europe/Berlin", "+16:00", "z")),
    *(("timestamp", f"2024-02-29{rest}", None) for rest in ("\n", " 24:00", " 12:60", "  12:00", "Z", "T", " 12", "x")),
    *(("timestamp", text, None) for text in ("0000-01-01", "10000-01-01", "2024-02-30", "+2024-02-29", "-2024-02-29")),
    *(("timestamp", text, None) for text in ("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.5-00:30", "2024-02-29".translate(ARABIC))),
    *(("date", text, date(2024, 2, 9)) for text in ("2024-02-09", "2024-2-9", " 2024-02-09 ")),
    *(("date", text, None) for text in ("2024-02-30", "2024", "2024-02-29T10:00", "20240229", "0000-01-01", "17/06/09")),
    *(("date", text, None) for text in ("10000-01-01", "2024-W09-4", "2024-02-29".translate(ARABIC), "2024-02-09\n", "today")),
    *((MONEY, text, Decimal("0.05")) for text in ("0.05", ".05", "5e-2", "5E-02", "+0.050", "500e-4", "0.0005e2", " 0.05")),
    *((MONEY, text, Decimal(1500)) for text in ("1500", "1500.", "1.5e3", "15e+2", "1500.00000", "0001500", "1500000e-3")),
    *((MONEY, text, Decimal(0)) for text in ("0", "-0", "0e-9", "0.000", "0e9")),
    (MONEY, "9999999999999999.99", Decimal("9999999999999999.99")),
    (TINY, "1e-05", Decimal("0.00001")),
    (TINY, "-1.25E-34", Decimal("-0." + "0" * 33 + "125")),
    *((MONEY, text, None) for text in ("1e-05", "1.234", "12345e-3", "1e17", "1e400", "1e-400", "1e99999", "1e", "e5", ".")),
    *((MONEY, text, None) for text in ("12.345".translate(ARABIC), "1" + ".234".translate(ARABIC), "12".translate(FULL_WIDTH), "1_000", "1,5", "NaN", "Infinity", "", "1 2", "1\n", "0x1")),
    *(("double", text, 12.5) for text in ("12.5", "1.25e1", " 12.5", "+12.50", "1250E-2")),
    *(("double", text, None) for text in ("NaN", "Infinity", "1d", "1e400", "1".translate(ARABIC), "1_0", "0x1p3", "")),
    *(("decimal(5,2)", text, Decimal("123.45")) for text in ("123.450", "12345e-2")),
    *(("decimal(5,2)", text, None) for text in (" +000123456.70 ", "-1234.", "-", "\u00a012345678", "0" * 50 + "12345")),
    *(("decimal(5,2)", text, None) for text in (" +" + "9" * 45 + ".5", "9" * 38)),
    *(("decimal(38,0)", text, Decimal(text)) for text in ("9" * 38, "5.0")),
    *(("decimal(38,0)", text, None) for text in ("9" * 39, "0.5")),
    ("decimal(3,3)", "0.123", Decimal("0.123")),
    *(("decimal(3,3)", text, None) for text in ("-0.00001", "1", "1.5")),
    *(("double", "1e300", 1e300), ("double", "a lot", None), ("int", "5", 5), ("int", "2147483648", None), ("int", "ü💥", None)),
    *(("bigint", text, None) for text in ("it's \\ so", "1.5", "a\nb", "x" * 3000)),
    *(("bigint", text, 12) for text in ("12", "+12", "012", " 12 ")),
    *(("bigint", text, None) for text in ("12.0", "1e1", "12".translate(FULL_WIDTH), "1_2", "9223372036854775808", "")),
    *(("boolean", text, True) for text in ("true", "T", "yes", "Y", "1")),
    *(("boolean", text, False) for text in ("false", "f", "NO", "n", "0")),
    *(("boolean", text, None) for text in ("2", "maybe", "1".translate(ARABIC), "")),
]  # fmt: skip


def test_spark_reads_a_text_as_its_value_or_refuses_it(spark: "SparkSession") -> None:
    from pyspark.sql import functions as f

    texts = spark.createDataFrame([(n, text) for n, (_, text, _) in enumerate(TEXTS)], "n int, text string")
    found: dict[int, object] = {}
    for type_ in {type_ for type_, _, _ in TEXTS}:
        own = texts.where(f.col("n").isin(*(n for n, (one, _, _) in enumerate(TEXTS) if one == type_)))
        fault = misread(f.col("text"), type_)
        assert fault is not None
        # as microseconds: Python times from Spark would be in this process's time zone
        value = f.when(~f.coalesce(fault, f.lit(False)), typed(f.col("text"), type_))
        read = f.unix_micros(value) if type_ == "timestamp" else value
        found |= dict(own.select("n", read).toLocalIterator())
    wanted = {n: micros(value) if isinstance(value, datetime) else value for n, (_, _, value) in enumerate(TEXTS)}
    assert {n: (*TEXTS[n][:2], found[n]) for n in wanted if found[n] != wanted[n]} == {}


def micros(moment: datetime) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds


def test_a_refusal_names_field_text_and_type() -> None:
    assert refusal("a lot", "data.v", "bigint") == "data.v is 'a lot', which is not exactly a bigint"


def test_a_fold_and_an_import_read_it_as_the_same() -> None:
    def folded(type_: str, text: str) -> object:
        try:
            return exact(text, type_)
        except ValueError:
            return None

    # in JSON, texts are no numbers and no booleans
    wanted = [one for one in TEXTS if one[0] in {"timestamp", "date", MONEY, TINY}]
    assert [(type_, text, folded(type_, text)) for type_, text, _ in wanted] == wanted

    times = [(text, value) for type_, text, value in TEXTS if type_ == "timestamp" and value is not None]
    iso = [(text, TimeForm().iso(text)) for text, _ in times]
    assert [(text, exact(written, "timestamp")) for text, written in iso] == times


def test_sql_reads_what_they_read_as_the_same(store: PlatformStore) -> None:
    connection = store.connection
    connection.execute("set timezone = 'UTC'")
    types = {"timestamp": "timestamptz", "double": "float8", MONEY: "numeric", TINY: "numeric"}
    for type_, text, value in TEXTS:
        if value is not None:
            try:
                (found,) = (
                    connection.execute(f"select %s::{types.get(type_, type_)}".encode(), (text,)).fetchone() or ()
                )
            except psycopg.DataError:
                continue
            assert (type_, text, found) == (type_, text, value)
