from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest

from keyfence.audit.plan import Header, Plan, PlanError, PlanWriter
from keyfence.audit.renames import Rename

HEADER = Header("shop", "r1", "redis://h:1")
MOVED = Rename(b"order-7", "order-7", 0, "order", "hash", b"shop:order:7", None)
TIMED = Rename(b"cart-\xff\xfe", "cart-\\xff\\xfe", 3, "cart", "hash", b"shop:cart:\xff\xfe", 600_000, True)
OPEN = Rename(b"note-7", "note-7", 0, "note", "string", None, 5, False, "who knows")


def written(path: Path, *renames: Rename) -> Plan:
    writer = PlanWriter(HEADER, str(path))
    for one in renames:
        writer.add(one)
    writer.close()
    return Plan(str(path))


def test_a_plan_is_read_back_byte_for_byte(tmp_path: Path) -> None:
    plan = written(tmp_path / "plan", MOVED, TIMED, OPEN)
    assert list(plan) == [MOVED, TIMED, OPEN]
    assert (plan.header, plan.renames, plan.open, plan.databases) == (HEADER, 2, 1, {0, 3})


def test_a_line_says_what_is_needed_and_no_more(tmp_path: Path) -> None:
    written(tmp_path / "plan", MOVED, OPEN)
    lines = [json.loads(line) for line in (tmp_path / "plan").read_text().splitlines()]
    assert lines == [
        {"plan": "migrate", "version": 1, "policy": "shop", "revision": "r1", "source": "redis://h:1"},
        {
            "old": "order-7",
            "new": "shop:order:7",
            "type": "hash",
            "ttl": None,
            "entry": "order",
            "database": 0,
        },
        {"old": "note-7", "type": "string", "ttl": 5, "entry": "note", "database": 0, "why": "who knows"},
    ]


def test_a_plan_is_for_its_owner_only(tmp_path: Path) -> None:
    written(tmp_path / "plan")
    assert stat.S_IMODE((tmp_path / "plan").stat().st_mode) == 0o600


def test_a_plan_goes_on_after_what_was_written_for_certain(tmp_path: Path) -> None:
    path = str(tmp_path / "plan")
    first = PlanWriter(HEADER, path)
    first.add(MOVED)
    kept = first.settle()
    first.add(OPEN)  # after the checkpoint
    first.close()
    again = PlanWriter(HEADER, path, at=kept)
    again.add(TIMED)
    again.close()
    assert list(Plan(path)) == [MOVED, TIMED]


def test_a_plan_that_was_cut_does_not_go_on(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_text("")
    with pytest.raises(PlanError, match="is shorter than the interrupted audit left it; remove both files"):
        PlanWriter(HEADER, str(path), at=100)


def test_a_plan_can_go_to_a_stream() -> None:
    stream = io.BytesIO()
    writer = PlanWriter(HEADER, stream=stream)
    writer.add(MOVED)
    writer.close()
    assert len(stream.getvalue().splitlines()) == 2
    assert not stream.closed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; keyfence audit --plan migrate writes a plan"),
        ("{}\n", "is not a plan of keyfence audit --plan migrate, version 1"),
        ("nonsense\n", "is not a plan of keyfence audit --plan migrate, version 1"),
        ("%H\nnonsense\n", r"plan:2: this is not a line of a plan: "),
        ("%H\n[]\n", r"plan:2: this is not a line of a plan: it is not an object"),
        ('%H\n{"old": "a", "new": "b"}\n', r"plan:2: this is not a line of a plan: 'type' is missing"),
        ('%H\n{"old": "a", "type": "hash"}\n', r"plan:2: .*: it has neither new nor why"),
        ('%H\n{"old": "a", "new": "a", "type": "hash"}\n', r"plan:2: .*: old and new are the same key"),
        ('%H\n{"old": 1, "new": "a", "type": "hash"}\n', r"plan:2: this is not a line of a plan: "),
    ],
)
def test_a_bad_plan_is_one_sentence_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    header = json.dumps(HEADER.line())
    (tmp_path / "plan").write_text(text.replace("%H", header))
    with pytest.raises(PlanError, match=message):
        Plan(str(tmp_path / "plan"))


def test_a_missing_plan_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read: no such file"):
        Plan(str(tmp_path / "plan"))
    with pytest.raises(PlanError, match="cannot be written: no such file"):
        PlanWriter(HEADER, str(tmp_path / "nowhere" / "plan"))


def test_a_changed_plan_has_another_digest(tmp_path: Path) -> None:
    assert written(tmp_path / "a", MOVED).digest == written(tmp_path / "b", MOVED).digest
    assert written(tmp_path / "a", MOVED).digest != written(tmp_path / "b", TIMED).digest
