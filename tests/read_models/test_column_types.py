"""Texts that a type holds, and texts that it does not hold exactly: which are refused, and in which words."""

from typing import TYPE_CHECKING

import pytest

from millrace.resources.read_models.declared.column_types import misread, refusal, typed
from tests.support.factories import ARABIC, FULL_WIDTH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# by type: texts that it holds, and texts that it does not
TEXTS: dict[str, tuple[list[str | None], list[str]]] = {
    "string": (["", "a lot", None], []),
    "bigint": (["12", " 7 ", None], ["it's \\ so", "", "9223372036854775808", "1.5", "a\nb", "x" * 3000]),
    "int": (["5"], ["2147483648", "ü💥"]),
    "double": (["1e300", None], ["NaN", "1e400", "", "a lot"]),
    "boolean": (["T"], ["maybe", "2"]),
    "date": ([" 2024-1-5 "], ["2024-02-30", "2024", "a lot", ""]),
    "timestamp": (["2024-02-29", None], ["2024-02-29 25:00", "10:00"]),
    "decimal(5,2)": (
        ["123.450", "1e2", "12345e-2", None],
        [
            *(" +000123456.70 ", "-1234.", "1.234", "", ".", "-", "a lot", "NaN", "1_000"),
            *("\u00a012345678", "12345678".translate(FULL_WIDTH), "1.234".translate(ARABIC)),
            *("12345e-3", "9" * 38, "0" * 50 + "12345", " +" + "9" * 45 + ".5"),
        ],
    ),
    "decimal(38,0)": (["9" * 38, "5.0"], ["9" * 39, "0.5"]),
    "decimal(3,3)": (["0.123"], ["-0.00001", "1", "1.5"]),
}


@pytest.mark.parametrize("type_", TEXTS)
def test_a_text_is_misread_that_its_type_does_not_hold_exactly_and_no_other(spark: "SparkSession", type_: str) -> None:
    from pyspark.sql import functions as f

    taken, refused = TEXTS[type_]
    texts = spark.createDataFrame([(text,) for text in (*taken, *refused)], "text string")
    fault = misread(f.col("text"), type_)
    wrong = texts.select("text", typed(f.col("text"), type_).isNull(), f.lit(False) if fault is None else fault)
    found = wrong.collect()
    assert [text for text, _, is_misread in found if is_misread] == refused
    assert [(text, text is None) for text in taken] == [(text, is_null) for text, is_null, _ in found[: len(taken)]]


def test_a_refusal_names_field_text_and_type() -> None:
    said = "[USER_RAISED_EXCEPTION] data.v is 'a lot', which is not exactly a bigint SQLSTATE: P0001"
    assert refusal("a lot", "data.v", "bigint") == said
