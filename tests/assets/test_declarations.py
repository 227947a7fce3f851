"""A user's declarations are each found once; a failing one is alone left out; contradictions are refused."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations, Fault, InvalidDeclarations, declared, load_part
from millrace.assets.lineage import column_schema
from millrace.errors import InvalidSetting, MillraceError
from millrace.event_schemas.fields import field_types
from millrace.platform_defs.cli.options import declared_model
from millrace.platform_defs.loading import build_defs, loadable
from millrace.read_models.shown.known_names import unknown_properties
from millrace.settings import EXAMPLE, NOTE, Settings
from tests.support import command_line

MODEL = """
from millrace import count, read_model, stream_id

@read_model(view="{view}", deciders=["d"], key=["k"])
class {name}:
    '''A model.'''

    k = stream_id()
    n = count()
"""
CAPTURE = """
from millrace import Capture
from millrace.capture import CapturedTable

C = Capture("{name}", lambda: "", (CapturedTable("{table}"),))
"""
REPORT = """
import dagster as dg

@dg.asset(key=["reports", "{name}"], partitions_def=dg.DailyPartitionsDefinition(start_date="{start}"))
def {name}():
    '''A report.'''
"""
SCHEDULE = """
import dagster as dg

@dg.schedule(name="{name}", job_name="rebuild", cron_schedule="0 5 * * 0")
def weekly():
    all_of_them = {{"dagster/asset_partition_range_start": "p00", "dagster/asset_partition_range_end": "p15"}}
    return dg.RunRequest(tags=all_of_them)
"""
EVENT = """
from millrace.event_schemas import event
from pydantic import BaseModel

@event(decider="d", version={version}, name={name!r})
class Happened(BaseModel):
    '''It happened.'''

    n: {type}
"""
ROLLUP = """
from millrace import count, rollup, row
from declared_here.read_models.a import A

@rollup(of=A, key=["n"])
class Grouped:
    '''A rollup.'''

    n = row("n")
    rows = count()
"""
PERSONAL = """
from typing import Annotated
from millrace.event_schemas import event
from millrace.personal import Personal
from pydantic import BaseModel

@event(decider="d")
class Moved(BaseModel):
    '''A person moved.'''

    n: Annotated[str, Personal(of="id", kind="person")]
    id: str

@event(decider="d")
class Named(BaseModel):
    '''A person got a name.'''

    n: str
"""
SORTED_MODEL = MODEL.format(view="a", name="A")

Declare = Callable[..., str]


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Declare]:
    """Write the files of a package and return its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(package: str = "declared_here", /, **files: str) -> str:
        for name, text in {"__init__": "", **files}.items():
            file = tmp_path.joinpath(package, *name.split("__", 1) if name != "__init__" else [name]).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        importlib.invalidate_caches()
        return package

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "declared_here"]:
        del sys.modules[name]


def test_the_rooms_of_a_package_are_looked_through_with_their_subfolders(declare: Declare, tmp_path: Path) -> None:
    package = declare(
        read_models__a=SORTED_MODEL,
        read_models__z="from declared_here.read_models.a import A\n",
        captures=CAPTURE.format(name="c", table="t"),
        defs__days=REPORT.format(name="days", start="2026-11-01"),
        defs__z="from declared_here.defs.days import days\n",
        events__b=EVENT.format(version=2, name="happened", type="int"),
        events__a=EVENT.format(version=1, name=None, type="int") + "from declared_here.events.b import Happened as H\n",
    )
    (tmp_path / package / "read_models" / "deeper").mkdir()
    (tmp_path / package / "read_models" / "deeper" / "b.py").write_text(MODEL.format(view="b", name="B"))
    found = declared(package)
    assert (list(found.models), list(found.captures)) == (["a", "b"], ["c"])
    assert [part.name for part in found.parts] == ["defs", "defs.days", "defs.z"]
    assert [str(each) for each in found.events] == [f"event happened version {n} of decider d" for n in (1, 2)]
    assert found.faults == ()
    assert found.files["read model b"] == tmp_path / package / "read_models" / "deeper" / "b.py"
    assert dg.AssetKey(["reports", "days"]) in all_keys(build_defs(declarations=found))
    # not imported unless asked for
    declare(defs__days="raise AssertionError")
    assert declared(package, ["read_models"]).faults == ()


def test_personal_values_are_sealed_in_a_model_and_above(declare: Declare, tmp_path: Path) -> None:
    names = "from millrace import count, last, latest, lookup, sum_"
    columns = (
        "last('data.n')",
        "m = latest('data.n', 2)",
        "o = last('data.n', events=['named'])",
        "c = count('data.n')",
    )
    kept = SORTED_MODEL.replace("from millrace import count", names).replace("count()", "\n    ".join(columns))
    over = MODEL.replace("from millrace", f"from declared_here.read_models.a import A\n{names}\nfrom millrace")
    over = over.replace("n = count()", "c = {c}\n    n = lookup({of}, on='{on}', column='n')")
    package = declare(
        events=PERSONAL, read_models__a=kept, read_models__g=ROLLUP.replace('row("n")', 'row("c")'),
        read_models__b=over.format(view="b", name="B", c="count()", of="A", on="k"),
        read_models__aa="from declared_here.read_models.b import B\n" + over.format(view="aa", name="Aa", c="count()", of="B", on="k"),
        read_models__y=over.format(view="y", name="Y", c="last('data.n')", of="A", on="c"),
        read_models__z=ROLLUP.replace("Grouped", "ByName"),
        read_models__sums=over.partition("    c =")[0].format(view="sums", name="Sums") + "    n = sum_('data.n')\n",
    )  # fmt: skip
    found = declared(package)
    assert {name: model.public_columns()["n"] for name, model in found.models.items()} == dict.fromkeys(
        ("a", "aa", "b"), "jsonb"
    )
    shown = {one.name: one for one in column_schema(found.models["a"]).columns}
    assert {name: one.type for name, one in shown.items()} == {
        "k": "text",
        "n": "jsonb",
        "m": "jsonb[]",
        "o": "text",
        "c": "bigint",
    }
    assert {name for name, one in shown.items() if str(one.description).startswith("sealed: ")} == {"n", "m"}
    assert str(column_schema(found.models["aa"]).columns[-1].description).startswith("sealed: n of read model b")
    assert field_types(found.events[0].schema)["n"] == "personal string"
    assert found.models["a"].rollups == (found.rollups["grouped"],)
    # built anew when a field becomes personal
    assert found.models["a"].fingerprint != sys.modules["declared_here.read_models.a"].A.fingerprint
    folder = tmp_path / package / "read_models"
    assert [(fault.file, fault.error.partition(", but")[0]) for fault in found.faults] == [
        (folder / "sums.py", "read model sums: 'n' is sum of data.n"),
        (folder / "y.py", "read model y: 'n' is made of c"),
        (folder / "z.py", "read model by_name: 'n' is over 'n', jsonb of sealed values; a key is text, bigint, int, boolean,"
         " date, timestamptz or decimal(p,s)"),
    ]  # fmt: skip
    # of an event that only the store has
    schema = {("d", "moved", 1): found.events[0].schema}
    told = "n, m: personal, and shown as text, because its event is not declared here"
    assert [*unknown_properties(sys.modules["declared_here.read_models.a"].A, schema)] == [(told, False)]
    assert [*unknown_properties(found.models["a"], schema)] == []


def test_a_model_has_all_its_rollups_or_says_so(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    package = declare(
        read_models__a=SORTED_MODEL, read_models__b=MODEL.format(view="b", name="B"), read_models__g=ROLLUP
    )
    found = declared(package)
    assert (list(found.models), list(found.rollups)) == (["a", "b"], ["grouped"])
    assert (found.models["a"].rollups, found.models["b"].rollups) == ((found.rollups["grouped"],), ())
    dg.Definitions.validate_loadable(build_defs(declarations=found))
    monkeypatch.setenv("MILLRACE_DECLARATIONS", package)
    with pytest.raises(MillraceError, match="grouped is a rollup of read model a, with which it changes"):
        declared_model("grouped", None)
    elsewhere = ROLLUP.replace("from declared_here.read_models.a import A", "from declared_here import shared")
    declare(shared=SORTED_MODEL, read_models__i=elsewhere.replace("of=A", "of=shared.A").replace("Grouped", "Lost"))
    refused = declared(package)
    assert (list(refused.rollups), [fault.error for fault in refused.faults]) == (
        ["grouped"],
        ["rollup lost: its read model a is not declared here"],
    )
    declare(read_models__h="1 / 0")
    assert [model.all_rollups for model in (*found.models.values(), *declared(package).models.values())] == [
        *(True, True),
        *(False, False),
    ]


def test_the_package_is_the_named_one_else_that_nearby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_DECLARATIONS", raising=False)
    (below := tmp_path / "project" / "below").mkdir(parents=True)
    monkeypatch.chdir(below)
    (home := tmp_path / "home").mkdir()

    def package(dsn: str | None = None, declarations: str | None = None) -> str | None:
        return Settings(home=home, dsn=dsn, declarations=declarations).declared_package

    own = "postgresql://somewhere"
    assert (package(), package(own)) == (None, None)
    assert declared(None) == Declarations()
    for kind in ("project", "home"):
        (below / "pyproject.toml").write_text("[project]\nname = 'x'\n")
        project = below.parent / "pyproject.toml"
        project.write_text("[tool.millrace]\ndeclarations = 'mine'\n") if kind == "project" else project.unlink()
        (home / NOTE).write_text("mine\n")
        # a package noted in a home does not apply to another store
        assert (package(), package(own)) == ("mine", "mine" if kind == "project" else None)
        assert (package(declarations="other"), package(own, EXAMPLE)) == ("other", EXAMPLE)
        with pytest.raises(InvalidSetting, match=r"(?s)is that of the package mine, and the example would be.*HOME"):
            package(declarations=EXAMPLE)
    (home / NOTE).write_text(f"{EXAMPLE}\n")
    assert (package(), package(declarations=EXAMPLE), package(own)) == (EXAMPLE, EXAMPLE, None)


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ("[tool.millrace]\ndeclarations = 'mine'", "(?s)is that of the package other, and .*toml names mine.*HOME"),
        ("[tool.millrace]\ndeclarations = 1", r"declarations in \[tool.millrace\] names no package: 1"),
        ("[tool.millrace", "(?s)pyproject.toml cannot be read: .*Correct the file"),
        ("tool = 1", "pyproject.toml cannot be read: "),
    ],
)
def test_an_odd_project_is_refused(said: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NOTE).write_text("other")
    (tmp_path / "pyproject.toml").write_text(said)
    with pytest.raises(InvalidSetting, match=refusal):
        _ = Settings(home=tmp_path, dsn=None, declarations=None).declared_package


def test_commands_refuse_without_a_package(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_DECLARATIONS", raising=False)
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    stated = ("--dsn", dsn)
    for command in (
        *(("capture", "status"), ("check",), ("check", *stated)),
        *(("run", "drain", "customers", "--once", *stated), ("show", "diff", "customers", *stated)),
        *(("show", "as-of", "customers", *stated), ("view", "approve", "customers", *stated)),
    ):
        monkeypatch.delenv("MILLRACE_DSN", raising=False)
        with pytest.raises(MillraceError, match="Name it by MILLRACE_DECLARATIONS"):
            command_line.millrace(*command)


# Refused ---------------------------------------------------------------------------------------------------


NO_SUCH = "(?s)There is no package '{}'.*MILLRACE_DECLARATIONS.*new DIR"
NOTHING = "(?s)declares nothing.*read_models, captures, subscriptions, defs, services.py"


def test_a_package_that_cannot_be_used_is_refused_with_its_remedy(declare: Declare) -> None:
    unknown = ("no_such_package", "no_such.package", "json.no_such", "not a name", ".relative")
    refusals = {**{each: NO_SUCH.format(each) for each in unknown}, "json": NOTHING, declare(): NOTHING}
    for package, refusal in refusals.items():
        with pytest.raises(InvalidDeclarations, match=refusal):
            declared(package)
    # the package itself, with the line
    with pytest.raises(InvalidDeclarations, match=r"(?s)fails to load.*__init__.py:2: ZeroDivisionError"):
        declared(declare("fails_here", read_models__a=SORTED_MODEL, __init__="\n1 / 0\n"))


@pytest.mark.parametrize(
    ("files", "said", "gone"),
    [
        ({"read_models__b": MODEL.format(view="b", name="A")}, "read model a is declared twice", "a"),
        ({"read_models__b": MODEL.format(view="a", name="B")}, "sensor poll_a is declared twice", "a"),
        ({"read_models__b": MODEL.format(view="read_models", name="B")}, "sensor poll_read_models is declared", None),
        ({"captures__b": CAPTURE.format(name="c", table="u")}, "capture c is declared twice", "c"),
        ({"captures__b": CAPTURE.format(name="b", table="t")}, "decider table:public.t is declared twice", "c"),
        ({"captures__b": CAPTURE.format(name="a", table="u")}, "sensor poll_a is declared twice", None),
        (
            {"captures__b": CAPTURE.format(name="views", table="u")},
            "sensor poll_views is declared twice, in Mill",
            None,
        ),
        ({"events__b": EVENT.format(version=1, name=None, type="str")}, "event happened version 1 of", "happened"),
    ],
)
def test_of_one_name_neither_counts(declare: Declare, files: dict[str, str], said: str, gone: str | None) -> None:
    package = declare(
        read_models__a=SORTED_MODEL,
        read_models__other=MODEL.format(view="other", name="Other"),
        captures__a=CAPTURE.format(name="c", table="t"),
        events__a=EVENT.format(version=1, name=None, type="int"),
        **files,
    )
    found = declared(package)
    (fault,) = found.faults
    assert fault.error.startswith(said)
    assert fault.file.name == "b.py"
    assert "a.py" in fault.error or "in Millrace" in fault.error
    assert {*found.models, *found.captures, *(event.event for event in found.events)} == {
        *({"a", "other", "c", "happened"} - {gone})
    }
    # the code location loads with the other declarations
    assert dg.AssetKey(["read_models", "other"]) in all_keys(build_defs(declarations=found))


def test_two_things_of_one_name_in_one_file_are_refused_too(declare: Declare) -> None:
    found = declared(declare(read_models__a=SORTED_MODEL + SORTED_MODEL.replace("class A", "class a") + "B = A\n"))
    assert (found.models, len(found.faults)) == ({}, 1)


NEEDS = """
import dagster as dg

class Mine(dg.ConfigurableResource):
    text: str = "x"

@dg.asset
def needs(mine: Mine) -> None: ...
"""
AS_A_MODEL = """
import dagster as dg

@dg.asset(key=["read_models", "a"])
def is_named_as_a_model() -> None: ...
"""
# each kind that a file of defs can have, with a resource of its own
ALL_KINDS = """
import dagster as dg

class Own(dg.ConfigurableResource):
    text: str = "x"

@dg.asset(deps=[["read_models", "a"]])
def below(own: Own) -> None: ...

@dg.asset_check(asset=below)
def is_well() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)

job = dg.define_asset_job("below_alone", selection=[below])

@dg.sensor(job=job)
def when_asked() -> None: ...

@dg.definitions
def resources() -> dg.Definitions:
    return dg.Definitions(resources={"own": Own()})
"""
AGAIN = "from declared_here.defs.all_kinds import below, is_well, job, resources, when_asked\n"
COMPONENT = """
type: dagster.PythonScriptComponent
attributes:
  execution: {path: script.py}
  assets: [{key: of_a_component}]
"""


def test_any_object_of_dagster_is_loaded_from_defs(declare: Declare, tmp_path: Path) -> None:
    package = declare(read_models__a=SORTED_MODEL, defs__all_kinds=ALL_KINDS, defs__z=AGAIN)
    (component := tmp_path / package / "defs" / "component").mkdir()
    (component / "defs.yaml").write_text(COMPONENT)
    (component / "script.py").touch()
    found = declared(package)
    assert found.faults == ()
    defs = build_defs(declarations=found)
    assert {dg.AssetKey(["below"]), dg.AssetKey(["of_a_component"])} <= all_keys(defs)
    assert dg.AssetCheckKey(dg.AssetKey(["below"]), "is_well") in defs.resolve_asset_graph().asset_check_keys
    assert defs.resolve_job_def("below_alone").execute_in_process().success
    assert {"when_asked", "poll_a"} <= {sensor.name for sensor in defs.sensors or []}


def test_a_file_of_defs_that_fails_costs_itself_alone(
    declare: Declare, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = declare(
        read_models__a=SORTED_MODEL,
        captures=REPORT.format(name="elsewhere", start="2026-11-01"),
        defs__as_a_model=AS_A_MODEL,
        defs__fails="1 / 0\n",
        defs__needs=NEEDS,
        defs__own=SCHEDULE.format(name="archive_hourly"),
        defs__well=REPORT.format(name="well", start="2026-11-01"),
    )
    (component := tmp_path / package / "defs" / "component").mkdir()
    (component / "defs.yaml").write_text("type: no.such.Component\n")
    kept, defs = loadable(declared(package), Settings())
    assert {dg.AssetKey(["read_models", "a"]), dg.AssetKey(["reports", "well"])} <= all_keys(defs)
    said = {fault.name: fault.error for fault in kept.faults}
    assert {name for name, error in said.items() if "is left out: " in error} == {
        *("elsewhere", "as_a_model", "needs", "own"),
    }
    assert set(said) == {"elsewhere", "as_a_model", "needs", "own", "fails", "component"}
    assert "'mine'" in said["needs"]
    # and so do the terminal and a check in CI
    monkeypatch.setenv("MILLRACE_DECLARATIONS", package)
    for command, code in (("status", 0), ("check", 1)):
        assert command_line.millrace(command, dsn=dsn, code=code).count("is left out") == 4


def test_names_that_dagster_has_no_word_for_are_written_by_numbers(declare: Declare) -> None:
    package = declare(
        read_models__a=MODEL.format(view="a-b", name="A"),
        events__a=EVENT.format(version=1, name=None, type="int").replace('decider="d"', 'decider="d/é"'),
        subscriptions__a="from millrace import subscription\n\n@subscription(view='a b')\ndef handle(event): ...\n",
    )
    kept, defs = loadable(declared(package), Settings())
    assert kept.faults == ()
    assert "poll_a_2d_b" in {sensor.name for sensor in defs.sensors or []}
    assert all_keys(defs) >= {dg.AssetKey(["events", "d_2f__e9_"]), dg.AssetKey(["subscriptions", "a_20_b"])}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"__init__": "\n1 / 0\n"}, r"declared_here fails to load, .*__init__.py:2: ZeroDivisionError"),
        # both are `events/d_2f_` to Dagster
        (
            {
                "events__a": EVENT.format(version=1, name=None, type="int").replace('decider="d"', 'decider="d/"'),
                "events__b": EVENT.format(version=1, name=None, type="int").replace('decider="d"', 'decider="d_2f_"'),
            },
            r"Dagster refuses all that is declared.*same key.*'events', 'd_2f_'",
        ),
    ],
)
def test_where_nothing_loads_the_terminal_says_why(
    declare: Declare, dsn: str, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], said: str
) -> None:
    monkeypatch.setenv("MILLRACE_DECLARATIONS", declare(read_models__a=SORTED_MODEL, **files))
    assert re.search(said, command_line.millrace("status", dsn=dsn), re.DOTALL)
    with pytest.raises(InvalidDeclarations, match=f"(?s){said}"):
        command_line.millrace("check", dsn=dsn)


def all_keys(defs: dg.Definitions) -> set[dg.AssetKey]:
    return set(defs.resolve_asset_graph().get_all_asset_keys())


# Faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "error"),
    [
        ("import json\nimport no_such_thing\n", 2, "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("x = 1\ny = (\n", 2, "SyntaxError: '(' was never closed"),
        (MODEL.format(view="b", name="B").replace("count()", "count(events=7)"), 9, "TypeError"),
        (MODEL.format(view="b", name="B").replace('key=["k"]', 'key=["other"]'), 4, "InvalidReadModel: "),
        ("import sys\nsys.exit('no')\n", 2, "SystemExit: no"),
        # the fault is in a module that the file imports
        ("from declared_here.shared import words\n", 2, "ValueError: no"),
    ],
)
def test_a_file_that_fails_is_told_by_line(declare: Declare, tmp_path: Path, text: str, line: int, error: str) -> None:
    shared = "def f():\n    raise ValueError('no')\nf()\n"
    package = declare(read_models__a=SORTED_MODEL, read_models__b=text, shared=shared)
    found = declared(package)
    assert list(found.models) == ["a"]
    (fault,) = found.faults
    assert (fault.room, fault.name) == ("read_models", "b")
    file = "shared.py" if "shared" in text else "read_models/b.py"
    assert str(fault).startswith(f"{tmp_path / package / file}:{line}: {error}")


def test_read_models_that_feed_each_other_are_refused(declare: Declare) -> None:
    files = {}
    for name, other in (("A", "b"), ("B", "c"), ("C", "a"), ("D", "a")):
        text = MODEL.format(view=name.lower(), name=name).replace('["d"]', f'["model:{other}"], feed=True')
        files[f"read_models__{name.lower()}"] = text
    found = declared(declare(**files))
    # without one of them the others are no circle
    assert len(found.models) == 3
    (fault,) = found.faults
    assert "its changes feed it again, through" in fault.error


def test_read_models_that_look_each_other_up_are_refused_with_the_files(declare: Declare, tmp_path: Path) -> None:
    files = {}
    for name, other in ("A", "B"), ("B", "A"):
        text = MODEL.format(view=name.lower(), name=name).replace("count, ", "count, lookup, ")
        looking = f"    other = lookup({other}, on='k', column='n')\n"
        imported = f"from declared_here.read_models.{other.lower()} import {other}\n"
        files[f"read_models__{name.lower()}"] = imported + text + looking
    package = declare(**files)
    found = declared(package)
    assert not found.models
    assert [fault.name for fault in found.faults] == ["a", "b"]
    assert all("circular import" in fault.error for fault in found.faults)
    assert all(fault.file.parent == tmp_path / package / "read_models" for fault in found.faults)


def test_what_fails_keeps_its_place_in_the_graph_and_is_red(declare: Declare) -> None:
    package = declare(
        read_models__a=SORTED_MODEL, read_models__b="import no_such_thing\n", captures__c="1 / 0\n", defs__d="x\n",
        # a name that Dagster refuses
        **{"read_models__é-b c": "x\n"},
        # a file that is named as a decider of another one
        events__a=EVENT.format(version=1, name=None, type="int"), events__d="1 / 0\n",
    )  # fmt: skip
    found = declared(package)
    defs = build_defs(declarations=found)
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    for key in (["read_models", "b"], ["read_models", "_e9__2d_b_20_c"], ["captures", "c"], ["defs", "d"]):
        node = graph.get(dg.AssetKey(key))
        assert "fails to load" in (node.description or "")
        assert ".py:1: " in (node.description or "")
    assert graph.get(dg.AssetKey(["read_models", "a"])).is_executable
    of_b = [key.name for key in graph.asset_check_keys if key.asset_key == dg.AssetKey(["read_models", "b"])]
    assert of_b == ["declaration_loads"]
    assert "b.py:1: ModuleNotFoundError" in str(defs.metadata["files that fail"].value)
    (check,) = [
        each
        for each in defs.asset_checks or ()
        if isinstance(each, dg.AssetChecksDefinition)
        and each.check_key == dg.AssetCheckKey(dg.AssetKey(["read_models", "b"]), "declaration_loads")
    ]
    result = check()
    assert isinstance(result, dg.AssetCheckResult)
    assert not result.passed
    assert "b.py:1: ModuleNotFoundError" in str(result.metadata["fails"].value)
    check_of_d = {key.name for key in graph.asset_check_keys if key.asset_key == dg.AssetKey(["events", "d"])}
    assert check_of_d == {"schemas_match_code", "declaration_loads"}
    # only models that load are rebuilt, and checked for their lag
    assert defs.resolve_job_def("rebuild").asset_layer.executable_asset_keys == {dg.AssetKey(["read_models", "a"])}


def test_services_and_commands_are_loaded_by_themselves(declare: Declare, tmp_path: Path) -> None:
    package = declare(services="answer = 42\n", commands="raise OSError('none')\n")
    services, commands = load_part(package, "services"), load_part(package, "commands")
    assert vars(services)["answer"] == 42
    file = tmp_path / package / "commands.py"
    assert commands == Fault("commands", "commands", file, 1, "OSError: none")
    assert load_part(package, "defs") is None
    assert load_part(None, "services") is None


def test_schedules_of_ones_own_are_loaded_and_start_jobs_of_ours(declare: Declare) -> None:
    package = declare(read_models__a=SORTED_MODEL, defs__weekly=SCHEDULE.format(name="sundays"))
    defs = build_defs(declarations=declared(package))
    dg.Definitions.validate_loadable(defs)
    schedule = defs.resolve_schedule_def("sundays")
    # an operator has to switch it on
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    with dg.build_schedule_context(repository_def=defs.get_repository_def()) as context:
        (request,) = schedule.evaluate_tick(context).run_requests or []
    assert request.tags["dagster/asset_partition_range_end"] == "p15"
    assert defs.resolve_job_def(schedule.job_name).partitions_def is not None
