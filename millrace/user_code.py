"""Users' classes and functions: their names in the store, and whether a call runs the body."""

import inspect
import re
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from millrace.errors import MillraceError

Result = TypeVar("Result")


class NeverRan(MillraceError):
    """A function returned, but its work is not done: its result, such as a coroutine, still has to run."""


def snake_case(name: str) -> str:
    """Return the snake_case name for a class or a function."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def is_async(function: object) -> bool:
    """Return whether a call returns a coroutine: `async def`, or an object with an `async def __call__`."""
    return any(map(inspect.iscoroutinefunction, _code_of(function)))


def is_generator(function: object) -> bool:
    """Return whether a call returns a generator, synchronous or not."""
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in _code_of(function))


def finished(result: Result) -> Result:
    """Return a function's result, unless the function still has to run.

    Raises:
        NeverRan: The result is a coroutine, another awaitable, a generator or a future.
    """
    if not (inspect.isawaitable(result) or isinstance(result, (Generator, AsyncGenerator, Future))):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise NeverRan(
        f"The function returned a {type(result).__name__}: its code has not run to its end.",
        hint="Declare the function itself with async def, without a decorator that hides that; or let it wait for the"
        " result. It must not yield.",
    )


def _code_of(function: object) -> tuple[object, object]:
    """Return the candidates for the code of a call: the function, and the `__call__` of its type."""
    while isinstance(function, partial):
        function = function.func
    return function, type(function).__call__ if callable(function) else None
