"""Personal columns of a file: sealed in events, and shown neither in rejects nor by a trial."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import ImportRefused, InvalidSetting
from millrace.event_store.platform import PlatformStore
from millrace.importer.imported_events import Columns
from millrace.importer.importer import ImportedLog, ImportReport, try_import
from millrace.personal import Forgotten
from tests.support.command_line import millrace
from tests.support.customers import BERT, SECRET, People, people
from tests.support.import_logs import TIME, run, stored, write_text

__all__ = ["people"]
COLUMNS = Columns(("case",), "activity", ("at",), personal=("email", "phone.home"), subject=("customer", "who"))
WHOLE = Columns(("case",), "activity", data="all", personal=("all.email",), subject=("customer", "all.who"))


def row(number: int, who: Any = "anna", email: Any = SECRET, **other: Any) -> str:  # noqa: ANN401 - a cell
    shown = {"case": f"c-{number}", "activity": "begun", "at": TIME, "who": who}
    return json.dumps({**shown, "email": email, "phone": {"home": [SECRET], "area": 30}, **other})


def imported(people: People, dsn: str, file: Path, **options: Any) -> ImportReport:  # noqa: ANN401 - any option
    return run(dsn, file, **{"columns": COLUMNS, "sealer": people.sealer(), **options})


def read(people: People) -> list[dict[str, Any]]:
    return people.client().open_rows(data for _, _, data in stored(people.store) if "at" in data or "who" in data)


def test_values_are_sealed_wherever_they_are(people: People, dsn: str, tmp_path: Path) -> None:
    file = write_text(tmp_path / "log.jsonl", row(1), row(2, 7.0, None), row(3, 7, 1.50, other="\0"))
    assert imported(people, dsn, file).appended == 2
    assert SECRET not in str(stored(people.store))
    first, second = read(people)
    assert (first["email"], first["phone"], first["who"]) == (SECRET, {"home": [SECRET], "area": 30}, "anna")
    assert (second["email"], second["phone"]["home"], people.keys()) == (None, [SECRET], 2)
    whole = write_text(tmp_path / "whole.csv", "case,activity,all", 'c,moved,"{""email"": ""a"", ""who"": ""anna""}"')
    assert imported(people, dsn, whole, columns=WHOLE).appended == 1
    assert read(people)[-1] == {"email": "a", "who": "anna"}


def test_a_row_sent_again_is_stored_once_with_any_key(people: People, dsn: str, tmp_path: Path) -> None:
    file = write_text(tmp_path / "log.jsonl", row(1), row(2, "bert"))
    assert imported(people, dsn, file).appended == 2
    for change in (None, people.forget, people.readmit):
        if change:
            change()
        assert imported(people, dsn, file).already_there == 2
    people.forget(BERT)
    write_text(file, row(1), row(2, "bert"), row(3), row(4, "bert"))
    assert imported(people, dsn, file).appended == 2
    assert [type(data["email"]) is Forgotten for data in read(people)] == [True, True, False, True]


def test_rejects_and_reasons_have_no_personal_value(people: People, dsn: str, tmp_path: Path) -> None:
    lines = [row(1, None), row(2, "a@b"), row(3, "c 7"), row(4, at="never"), row(5)[:-1], row(6, case=SECRET * 99)]
    lines += [row(7, "a\0b"), row(8, "a\ud800")]
    report = imported(people, dsn, write_text(tmp_path / "log.jsonl", *lines))
    assert (report.rejected, report.appended) == (8, 0)
    assert report.rejects is not None
    text = report.rejects.read_text()
    told = [json.loads(line) for line in text.splitlines()]
    assert text.replace(SECRET * 99, "").count(SECRET) == 0
    person = "its person (who) cannot be told: "
    assert [each["reason"][: len(person)] for each in told[:3]] == [person] * 3
    assert json.loads(told[3]["raw"])["phone"] == {"home": "***", "area": 30}
    assert told[4]["raw"] == ""
    broken = (
        f'<log><trace><event><string key="who" value="a"/><int key="email" value="{SECRET}"/></event></trace></log>'
    )
    named = Columns((), None, stream_name="s", event_name="e", personal=("email",), subject=("customer", "who"))
    report = imported(people, dsn, write_text(tmp_path / "log.xes", broken), columns=named)
    assert report.rejects is not None
    assert SECRET not in report.rejects.read_text()


def test_a_value_that_the_store_wants_sealed_is_not_kept(people: People, dsn: str, tmp_path: Path) -> None:
    line = json.dumps({"id": "a", "customer_id": "anna", "email": SECRET})
    plain = Columns(("id",), None, event_name="customer_moved")
    report = run(dsn, write_text(tmp_path / "log.jsonl", line), decider="customer", columns=plain)
    assert report.rejected == 1
    assert report.rejects is not None
    assert SECRET not in report.rejects.read_text()
    sealed = replace(plain, personal=("email",), subject=("customer", "customer_id"))
    assert imported(people, dsn, tmp_path / "log.jsonl", decider="customer", columns=sealed).appended == 1
    assert people.emails() == [SECRET]


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_person_that_is_forgotten_before_the_rows_arrive(
    people: People, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    line = json.dumps({"id": "a", "customer_id": "anna", "email": SECRET})
    file = write_text(tmp_path / "log.jsonl", line)
    columns = Columns(
        ("id",), None, event_name="customer_moved", personal=("email",), subject=("customer", "customer_id")
    )
    seal, once = PlatformStore.seal_texts, iter([1])

    def late(*arguments: Any) -> Any:  # noqa: ANN401 - passed on
        texts = seal(*arguments)
        if next(once, None):
            people.forget()
            if comes_back:
                people.readmit()
        return texts

    monkeypatch.setattr(PlatformStore, "seal_texts", late)
    assert imported(people, dsn, file, decider="customer", columns=columns).appended == 1
    assert [type(each) for each in people.emails()] == [str if comes_back else Forgotten]


def test_a_trial_shows_no_personal_value(tmp_path: Path) -> None:
    numbers = [row(n, email=str(n)) for n in range(9)]
    file = write_text(tmp_path / "log.jsonl", row(1), *numbers, row(2, "a b"))
    trial = try_import(ImportedLog(file, "permit", COLUMNS))
    assert SECRET not in str(trial)
    assert json.loads(trial.first[0])["data"]["email"] == {"$sealed": "…"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"personal": ("email",)}, "go together"),
        ({"subject": ("customer", "who")}, "go together"),
        ({"personal": ("email",), "subject": ("customer", "")}, "go together"),
        ({"personal": ("mail",), "subject": ("customer", "who")}, "has no column 'mail'"),
        ({"personal": ("email",), "subject": ("customer", "whose")}, "has no column 'whose'"),
        ({"personal": ("who",), "subject": ("customer", "who")}, "The personal column who has another role"),
        ({"personal": ("phone",), "subject": ("customer", "phone.area")}, "The personal column phone has another role"),
        (
            {"personal": ("phone.home",), "subject": ("customer", "who"), "metadata": ("phone",)},
            "phone.home has another",
        ),
        ({"personal": ("phone.home", "phone"), "subject": ("customer", "who")}, "phone.home, phone has another role"),
        ({"personal": ("email", "email"), "subject": ("customer", "who")}, "email, email has another role"),
    ],
)
def test_options_that_would_show_a_value_are_refused(
    dsn: str, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    file = write_text(tmp_path / "log.jsonl", row(1))
    with pytest.raises(ImportRefused, match=said):
        run(dsn, file, columns=Columns(("case",), "activity", ("at",), **options))


def test_the_command_takes_the_folder_of_the_setting(people: People, dsn: str, tmp_path: Path) -> None:
    file = write_text(tmp_path / "log.csv", "case,activity,who,email", f"c,begun,anna,{SECRET}")
    words = ["import", file, "--decider", "permit", "--stream", "case", "--event", "activity", "--personal", "email"]
    with pytest.raises(InvalidSetting, match="MILLRACE_KEYS is not set"):
        millrace(*words, "--subject", "customer:who", dsn=dsn)
    millrace(*words, "--subject", "customer:who", dsn=dsn, MILLRACE_KEYS=str(people.folder))
    assert [data["email"] for data in read(people)] == [SECRET]
