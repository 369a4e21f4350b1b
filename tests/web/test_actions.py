from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest

from keyfence.admin.bodies import BadRequest
from keyfence.policy.diagnostics import Diagnostic, FileError, Place
from keyfence.web.actions import ACTIONS, Outcome, required
from tests.admin.test_server import FakeControl

TODAY = datetime.datetime.now(datetime.UTC).date()
WAIVER = {
    "finding": "f-1",
    "owner": "team-a",
    "why": "mended in sprint 12",
    "until": (TODAY + datetime.timedelta(days=9)).isoformat(),
}


def do(name: str, control: FakeControl | None = None, **form: str) -> Outcome:
    async def run() -> Outcome:
        return await ACTIONS[name](control or FakeControl(), form)

    return asyncio.run(run())


def test_a_required_field_is_not_empty() -> None:
    assert required({"why": " because "}, "why") == "because"
    for form in ({}, {"why": " \t"}):
        with pytest.raises(BadRequest, match=r"The field 'why' is empty\."):
            required(form, "why")


def test_a_waiver_is_written_with_its_owner_reason_and_last_day() -> None:
    control = FakeControl()
    done = do("waive", control, **WAIVER)
    until = TODAY + datetime.timedelta(days=9)
    assert control.asked == [("waive", "f-1", "team-a", "mended in sprint 12", until)]
    assert done == Outcome("The waiver is in /waivers.yaml and in force.", "f-1")


class ByHand(FakeControl):
    """A keyfence that may not write its files."""

    async def waive(self, finding: str, owner: str, reason: str, until: datetime.date) -> dict[str, Any]:
        done = await super().waive(finding, owner, reason, until)
        return done | {"written": False, "why": "no", "wide": ["any key a:*"]}

    async def set_mode(self, rule: str, service: str, mode: Any) -> dict[str, Any]:
        return await super().set_mode(rule, service, mode) | {"written": False, "why": "no"}


def test_what_cannot_be_written_is_given_as_a_line() -> None:
    done = do("waive", ByHand(), **WAIVER)
    assert done.code == "  - {service: CubeProxy}"
    assert done.lines == (
        "Nothing was written: no.",
        "Add this line to the waivers file, and reload:",
        "It admits more than was seen: any key a:*.",
    )
    mode = do("mode", ByHand(), mode="enforce", service="CubeProxy")
    assert (mode.code, mode.detail) == ("  - {mode: enforce}", "every rule for CubeProxy: enforce")
    assert "before the other modes" in mode.lines[1]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"finding": ""}, "The field 'finding' is empty."),
        ({"owner": " "}, "The field 'owner' is empty."),
        ({"why": ""}, "The field 'why' is empty."),
        ({"until": ""}, "The field 'until' is empty."),
        ({"until": "tomorrow"}, "The last day is not a date like 2026-12-31."),
        ({"until": "2026-02-30"}, "The last day is not a date like 2026-12-31."),
        ({"until": str(TODAY - datetime.timedelta(days=2))}, "The last day is over already."),
    ],
)
def test_a_waiver_that_lacks_something_is_not_written(change: dict[str, str], fault: str) -> None:
    control = FakeControl()
    with pytest.raises(BadRequest) as caught:
        do("waive", control, **WAIVER | change)
    assert str(caught.value) == fault
    assert control.asked == []


def test_a_waiver_that_the_configuration_does_not_take_is_reported() -> None:
    control = FakeControl()
    control.faults = [Diagnostic(Place("waivers.yaml", 2, 1), "error", "wrong")]
    with pytest.raises(FileError):
        do("waive", control, **WAIVER)


def test_a_mode_is_set_for_a_rule_a_service_or_all() -> None:
    control = FakeControl()
    done = do("mode", control, rule="scope.write", service="CubeProxy", mode="enforce")
    assert done.text == "scope.write for CubeProxy: enforce. It is in /keyfence.yaml and in force."
    assert do("mode", control, mode="disabled").detail == "every rule for every service: disabled"
    assert control.asked == [
        ("set_mode", "scope.write", "CubeProxy", "enforce"),
        ("set_mode", "", "", "disabled"),
    ]


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        ({}, "The field 'mode' is empty."),
        ({"mode": "off"}, "'off' is not a mode; choose from enforce, observe, disabled."),
        ({"mode": "enforce", "rule": "no.such"}, "'no.such' is not a rule."),
    ],
)
def test_a_wrong_mode_is_not_set(form: dict[str, str], fault: str) -> None:
    control = FakeControl()
    with pytest.raises(BadRequest) as caught:
        do("mode", control, **form)
    assert str(caught.value) == fault
    assert control.asked == []


def test_break_glass_is_opened_for_minutes_and_ended() -> None:
    control = FakeControl()
    done = do("observe", control, minutes="1.5", rule=" scope.write ", service="")
    assert done.detail == "scope.write, every service, 1.5 minutes"
    do("observe", control, minutes="1440")
    assert control.asked == [("observe", 90.0, "scope.write", None), ("observe", 86400.0, None, None)]


@pytest.mark.parametrize("minutes", ["0", "-1", "1441", "inf", "nan", "soon", "1e999"])
def test_break_glass_for_an_impossible_time_is_not_opened(minutes: str) -> None:
    control = FakeControl()
    with pytest.raises(BadRequest, match=r"The minutes must be a number from 1 to 1440\."):
        do("observe", control, minutes=minutes)
    assert control.asked == []


class Ended(FakeControl):
    async def end_observe(self) -> dict[str, Any]:
        return {"ended": 2}

    async def reload(self) -> dict[str, Any]:
        return {"policy": "p", "revision": "r", "changed": ["policy", "modes"], "needs_restart": ["workers"]}

    async def load_candidate(self, file: str) -> dict[str, Any]:
        return {"file": file, "revision": "r9"}

    async def rehearse(self) -> dict[str, Any]:
        return {"revision": "r9"}

    async def drop_candidate(self) -> dict[str, Any]:
        return {"dropped": {"file": "/new.yaml"}}

    async def promote_candidate(self) -> dict[str, Any]:
        return {"revision": "r9"}


def test_every_other_action_says_what_it_has_done() -> None:
    assert do("end-observe", Ended()).detail == "2 ended"
    reloaded = do("reload", Ended())
    assert reloaded.text == "Reloaded; changed: policy, modes. These need a restart: workers."
    loaded = do("load-candidate", Ended(), file="/new.yaml")
    assert loaded.text == "/new.yaml, revision r9, is compared with the policy in force."
    assert do("rehearse", Ended()).text == "A cluster is rehearsed with the policy in force."
    assert do("drop", Ended()).detail == "/new.yaml"
    assert do("drop", FakeControl()).detail == "none was loaded"
    assert do("promote", Ended()).detail == "r9"
