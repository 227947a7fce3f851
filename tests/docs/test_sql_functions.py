"""docs/sql_functions.md, docs/platform_functions.md and docs/who_may_do_what.md describe each function correctly."""

import re

from millrace.event_store.migrations import function_files
from millrace.event_store.refusals import BY_SQLSTATE
from tests.support.factories import Connect, rows
from tests.support.pages.documents import quoted, table
from tests.support.project import PROJECT

DOCS = PROJECT / "docs"
LOGINS = ("nobody", "writer", "consumer", "reader", "personal", "owner", "drain", "migrator")
FUNCTIONS = """
select p.pronamespace::regnamespace::text, p.proname, p.proargnames[1:p.pronargs], obj_description(p.oid, 'pg_proc'),
  array(
    select coalesce(substr(r.rolname, 13), 'nobody') from aclexplode(p.proacl) a
    left join pg_roles r on r.oid = a.grantee where a.grantee <> p.proowner
  )
from pg_proc p
where p.pronamespace::regnamespace::text in ('event_store', 'event_store_platform', 'event_store_private')
"""


def test_each_function_is_described_and_granted_as_told(connect: Connect) -> None:
    files = {path.stem: path.read_text() for path in function_files()}
    chapters = (DOCS / "sql_functions.md").read_text().split("\n## Rows\n")[0].split("\n### ")[1:]
    sections = {chapter.split("\n")[0]: chapter for chapter in chapters}
    lines = dict(re.findall(r"(?m)^- \[(\w+)\]\(\S+\)\s+\(([^)]*)\)", (DOCS / "platform_functions.md").read_text()))
    cells = dict(re.findall(r"(?m)^\| `([\w.]+)` \| (.*) \|$", (DOCS / "who_may_do_what.md").read_text()))
    told_of = {name: zip(LOGINS, row.split(" | "), strict=False) for name, row in cells.items()}
    logins = {name: {login for login, cell in told if cell != "no"} for name, told in told_of.items()}
    called: dict[str, set[str]] = {}
    for schema, name, arguments, comment, granted in rows(connect(), FUNCTIONS):
        assert comment, name
        grants = re.findall(r"^grant execute on function[^;]*?\sto ([^;]*);", files[name], re.MULTILINE)
        assert {*granted} == {*re.findall(r"event_store_(\w+)", " ".join(grants))}, name
        if schema == "event_store_private":
            assert granted == [], name
            continue
        called.setdefault(schema, set()).add(name)
        drain = {"drain"} if "owner" in granted else set()
        assert logins[name if schema == "event_store" else f"{schema}.{name}"] == {*granted, *drain, "migrator"}, name
        told = sections[name].split("May be called by ")[1].split(".")[0] if schema == "event_store" else lines[name]
        assert {*quoted(told)} == {*granted}, name
        if schema == "event_store":
            signature = sections[name].split("```text")[1].split("→")[0]
            assert re.findall(r"\bv_\w+", signature) == (arguments or []), name
            # the form that takes a UUID refers to the other one
            if "Does the same for a UUID" not in comment:
                assert {*re.findall(r"MR\d{3}", sections[name])} == {*re.findall(r"MR\d{3}", comment)}, name
    assert called == {"event_store": {*sections}, "event_store_platform": {*lines}}
    errors = {row[0]: quoted(row[1])[0] for row in table("docs/sql_functions.md", "SQLSTATE")}
    assert errors == {state: refusal.__name__ for state, refusal in BY_SQLSTATE.items()}
