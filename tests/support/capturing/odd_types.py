"""Types of real sources that a plain server lacks, made by SQL alone."""

from typing import LiteralString

# A case-insensitive text in a schema off the search path, like citext on hosted servers.
CASELESS: tuple[LiteralString, ...] = (
    "create schema extensions",
    "create type extensions.caseless",
    "create function extensions.caseless_in(cstring) returns extensions.caseless"
    " language internal immutable strict as 'textin'",
    "create function extensions.caseless_out(extensions.caseless) returns cstring"
    " language internal immutable strict as 'textout'",
    "create type extensions.caseless"
    " (input = extensions.caseless_in, output = extensions.caseless_out, like = text, collatable = true)",
    "create cast (extensions.caseless as text) without function as implicit",
    "create cast (text as extensions.caseless) without function as assignment",
    *[
        f"create function extensions.{name}(extensions.caseless, extensions.caseless) returns {returned}"
        f" language sql immutable strict as $$ select {compared} $$"
        for name, returned, compared in (
            ("cmp", "int", "bttextcmp(lower($1::text), lower($2::text))"),
            ("lt", "boolean", "lower($1::text) < lower($2::text)"),
            ("le", "boolean", "lower($1::text) <= lower($2::text)"),
            ("eq", "boolean", "lower($1::text) = lower($2::text)"),
            ("ge", "boolean", "lower($1::text) >= lower($2::text)"),
            ("gt", "boolean", "lower($1::text) > lower($2::text)"),
        )
    ],
    *[
        f"create operator extensions.{sign}"
        f" (function = extensions.{name}, leftarg = extensions.caseless, rightarg = extensions.caseless)"
        for name, sign in (("lt", "<"), ("le", "<="), ("eq", "="), ("ge", ">="), ("gt", ">"))
    ],
    "create operator class extensions.caseless_ops default for type extensions.caseless using btree as"
    " operator 1 extensions.<, operator 2 extensions.<=, operator 3 extensions.=, operator 4 extensions.>=,"
    " operator 5 extensions.>, function 1 extensions.cmp(extensions.caseless, extensions.caseless)",
)  # fmt: skip
