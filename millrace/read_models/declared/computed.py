"""Columns that a read of a row computes from the row's other columns.

An expression is parsed as Python's, and none of its text gets into SQL.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from psycopg import sql

from millrace.read_models.declared.column_types import InvalidColumn

ALLOWED = (
    "+ - * / of numbers, - of two times or days, seconds(…) of a duration, == != < <= > >= of one type, and or not,"
    " brackets, numbers, texts, True, False and the names of other columns"
)
# limits of an expression with those that it names, so that views stay small
MOST_PARTS, MOST_DIGITS = 1_000, 100

_ARITHMETIC: dict[type[ast.AST], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS: dict[type[ast.AST], str] = {
    ast.Eq: "=",
    ast.NotEq: "<>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_CONNECTIVES: dict[type[ast.AST], str] = {ast.And: " and ", ast.Or: " or "}
# the type of a difference of two values of a type
_DIFFERENCES = {"timestamptz": "interval", "date": "numeric"}


@dataclass(frozen=True)
class Computed:
    """A column that is an expression over its row.

    Attributes:
        text: The expression.
    """

    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it names, in order."""
        found = (
            node.id for node in ast.walk(_parsed(self.text)) if isinstance(node, ast.Name) and node.id != "seconds"
        )
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Value:
    """A column in SQL: an expression, its Postgres type, and the number of its parts."""

    expression: sql.Composable
    type: str
    parts: int = 1


def computed(expression: str) -> Computed:
    """Compute a column from others of its row when the row is read, such as `closed_at - begun_at`.

    Its operators are + - * / of numbers, - of two times, `seconds(…)` of a duration, comparisons, and or not. It is
    null if a value that it needs is null, and if it divides by zero.
    """
    if not isinstance(expression, str) or len(expression) > MOST_PARTS:
        raise InvalidColumn(f"computed({expression!r:.100}): write a text of at most {MOST_PARTS} characters")
    _parsed(expression)
    return Computed(expression)


def values_with(computed: Mapping[str, Computed], stored: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values of all columns of a row: stored and computed ones.

    Raises:
        InvalidColumn: One names an unknown column, or itself over others, or does something that its types forbid.
    """
    found = dict(stored)

    def of(name: str, under: tuple[str, ...]) -> Value:
        if name in under:
            circle = " from ".join(repr(one) for one in (*under[under.index(name) :], name))
            raise InvalidColumn(f"computed column {circle}: a column cannot be computed from itself")
        if name not in found:
            if name not in computed:
                raise InvalidColumn(
                    f"computed column {under[-1]!r}: there is no column {name!r} to compute from;"
                    f" there are {', '.join([*stored, *(one for one in computed if one not in under)])}"
                )
            text = computed[name].text
            try:
                value = _Expression(name, text, lambda other: of(other, (*under, name))).value(_parsed(text).body)
            except RecursionError as error:
                raise InvalidColumn(f"computed column {name!r}: it is nested too deeply; compute less") from error
            if value.parts > MOST_PARTS:
                raise InvalidColumn(f"computed column {name!r}: it has more than {MOST_PARTS} parts; compute less")
            found[name] = value
        return found[name]

    for name in computed:
        of(name, ())
    return found


def _parsed(text: str) -> ast.Expression:
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise InvalidColumn(f"computed({text!r:.100}) is no expression: {error}; allowed: {ALLOWED}") from error


@dataclass(frozen=True)
class _Expression:
    """An expression of a column, and how to find the columns that it names."""

    column: str
    text: str
    value_of: Callable[[str], Value]

    def value(self, node: ast.AST) -> Value:
        """Return the SQL of a part of the expression."""
        match node:
            case ast.Name(id=name):
                value = self.value_of(name)
            case ast.Constant(value=constant):
                value = self.constant(node, constant)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                value = self.arithmetic(node, _ARITHMETIC[type(op)], self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.of("- {}", "numeric", self.operand(operand, "numeric"))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self.of("not {}", "boolean", self.operand(operand, "boolean"))
            case ast.BoolOp(op=op, values=values):
                template = _CONNECTIVES[type(op)].join(["{}"] * len(values))
                value = self.of(template, "boolean", *(self.operand(one, "boolean") for one in values))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                first = self.value(left)
                second = self.operand(right, first.type)
                value = self.of(f"{{}} {_COMPARISONS[type(op)]} {{}}", "boolean", first, second)
            case ast.Call(func=ast.Name(id="seconds"), args=[one], keywords=[]):
                value = self.of("extract(epoch from {})", "numeric", self.operand(one, "interval"))
            case _:
                raise self.refused(node, f"is not allowed; allowed: {ALLOWED}")
        return value

    def constant(self, node: ast.AST, constant: Any) -> Value:  # noqa: ANN401 - whatever Python reads
        if isinstance(constant, bool):
            return Value(sql.Literal(constant), "boolean")
        # Postgres cannot hold every character of Python's in a text
        if isinstance(constant, str) and constant.isprintable():
            return Value(sql.SQL("{}::text").format(sql.Literal(constant)), "text")
        if isinstance(constant, int | float):
            # as it is written, not as the nearest double
            number = Decimal(constant if isinstance(constant, int) else self.source(node))
            if abs(number.adjusted()) < MOST_DIGITS and len(number.as_tuple().digits) < MOST_DIGITS:
                return Value(sql.SQL("{}::numeric").format(sql.Literal(number)), "numeric")
        raise self.refused(node, f"is not allowed; allowed: {ALLOWED}")

    def arithmetic(self, node: ast.AST, operator: str, left: Value, right: Value) -> Value:
        if operator == "-" and left.type == right.type and left.type in _DIFFERENCES:
            type_ = _DIFFERENCES[left.type]
            return self.of(f"({{}} - {{}})::{type_}", type_, left, right)
        if {left.type, right.type} != {"numeric"}:
            raise self.refused(
                node,
                f"is {operator} of {left.type} and {right.type}; allowed: {ALLOWED}; numbers are bigint or decimal",
            )
        return self.of("{} / nullif({}, 0)" if operator == "/" else f"{{}} {operator} {{}}", "numeric", left, right)

    def operand(self, node: ast.AST, type_: str) -> Value:
        value = self.value(node)
        if value.type != type_:
            raise self.refused(node, f"is {value.type}, where {type_} is wanted; allowed: {ALLOWED}")
        return value

    def of(self, template: str, type_: str, *values: Value) -> Value:
        composed = sql.SQL(f"({template})").format(*(value.expression for value in values))
        return Value(composed, type_, 1 + sum(value.parts for value in values))

    def refused(self, node: ast.AST, why: str) -> InvalidColumn:
        return InvalidColumn(f"computed column {self.column!r}: {self.source(node)!r:.100} {why}")

    def source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text.strip(), node) or self.text


def as_operand(expression: sql.Composable, type_: str) -> Value:
    """Return a stored column as an operand: every exact number is numeric."""
    if type_ in {"bigint", "int"} or type_.startswith("numeric"):
        return Value(sql.SQL("({})::numeric").format(expression), "numeric")
    return Value(expression, type_)
