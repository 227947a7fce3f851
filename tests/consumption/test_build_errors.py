"""What an error of Spark or Postgres says, in one line that can be stored."""

from millrace.resources.consumption.build_errors import cause


def test_of_a_python_stack_the_last_line_is_told_and_of_a_java_stack_nothing() -> None:
    text = "Traceback (most recent call last):\n  File x\nValueError: no amount\n\nJVM stacktrace:\norg.apache.spark.X\n\tat a.b"
    assert cause(RuntimeError(text)) == "ValueError: no amount"


def test_what_postgres_does_not_take_is_replaced_and_a_long_value_is_cut() -> None:
    assert cause(ValueError("a\0b\ud800")) == "a\N{REPLACEMENT CHARACTER}b?"
    assert len(cause(ValueError("x" * 1_000_000))) == 2000


def test_an_error_without_a_text_is_told_by_its_name() -> None:
    assert cause(ValueError()) == "ValueError"
