"""Texts that a type does not hold: the form that raises and the form that tells agree, word for word."""

from typing import TYPE_CHECKING

import pytest

from millrace.resources.consumption.build_errors import build_errors, cause, in_one_line
from millrace.resources.read_models.column_types import misread, refusal, typed
from tests.support.factories import ARABIC, FULL_WIDTH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS: dict[str, list[str | None]] = {
    "string": ["", "a lot"],
    "bigint": ["12", " 7 ", "it's \\ so", "", "9223372036854775808", "1.5", "a\nb", "x" * 3000, None],
    "int": ["5", "2147483648", "ü💥"],
    "double": ["1e300", "NaN", "1e400", "", "a lot"],
    "boolean": ["T", "maybe", "2"],
    "date": [" 2024-1-5 ", "2024-02-30", "2024", "a lot", ""],
    "timestamp": ["2024-02-29", "2024-02-29 25:00", "10:00"],
    "decimal(5,2)": [
        *("123.450", " +000123456.70 ", "-1234.", "1.234", "1e2", "", ".", "-", "a lot", "NaN", "1_000"),
        *(
            "\u00a012345678",
            "12345678".translate(FULL_WIDTH),
            "1.234".translate(ARABIC),
            "12345e-2",
            "12345e-3",
            "9" * 38,
            "0" * 50 + "12345",
            " +" + "9" * 45 + ".5",
        ),
    ],
    "decimal(38,0)": ["9" * 38, "9" * 39, "0.5", "5.0"],
    "decimal(3,3)": ["0.123", "-0.00001", "1", "1.5"],
}


@pytest.mark.parametrize("type_", TEXTS)
def test_where_reading_a_text_raises_it_is_told_without_raising_with_the_same_words(
    spark: "SparkSession", type_: str
) -> None:
    from pyspark.sql import functions as f

    texts = spark.createDataFrame([(n, text) for n, text in enumerate(TEXTS[type_])], "n int, text string")
    text = f.col("text")
    fault = misread(text, type_)
    if fault is None:
        assert [row[0] for row in texts.select(typed(text, "data.v", type_)).collect()] == TEXTS[type_]
        return
    told: dict[int, str] = {
        row["n"]: refusal(row["fault"], "data.v", type_)
        for row in texts.select("n", fault.alias("fault")).where("fault is not null").collect()
    }
    assert 0 < len(told) < len(TEXTS[type_])
    # of the others none raises
    others = texts.where(~f.col("n").isin(*told)).select(typed(text, "data.v", type_)).collect()
    assert len(others) == len(TEXTS[type_]) - len(told)
    for n, words in told.items():
        with pytest.raises(build_errors()) as raised:
            texts.where(f.col("n") == n).select(typed(text, "data.v", type_)).collect()
        assert cause(raised.value) == in_one_line(words)
