"""The fleet's candidate on one keyfence: compared only as it was signed, never again once it has gone, and
behind what an operator compares there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyfence.findings.history.book import CANDIDATE
from keyfence.fleet.model import Offer, PolicyServer
from keyfence.fleet.redis_candidate import RedisCandidate
from keyfence.fleet.source import PolicySource
from keyfence.process.candidates import Candidates
from keyfence.process.fleet_candidate import FleetCandidate
from keyfence.process.provision import Provision
from keyfence.process.serving.candidate import CLUSTER
from keyfence.process.serving.loader import Loader
from keyfence.process.serving.packing import Packed, pack
from keyfence.process.serving.reload import Origin, read_once
from tests.clients.running import ask, eventually, metric
from tests.fleet.publishing import Publisher
from tests.process.test_signed_policies import Instance, Stored, by
from tests.servers import RedisServer, running_redis

KEY = "keyfence:{shop}:candidate"


async def load_here(_loader: Loader, origin: Origin) -> Packed:
    """What a separate process does, in this one."""
    loaded, seen = read_once(origin.load, origin.given)
    return pack(*loaded)._replace(seen=seen)


class Backend:
    """Takes candidates, and compares nothing."""

    async def set_candidate(self, candidate: object) -> None:
        pass


class Stage:
    """A keyfence without clients whose policy is in a store, and what that store has as its candidate."""

    def __init__(self, folder: Path) -> None:
        self.publisher = Publisher()
        config = folder / "keyfence.yaml"
        listeners = "listeners: [{listen: '127.0.0.1:0', service: CubeMaster}]\n"
        source = f"{{redis: redis://nowhere, name: shop, trust: '{self.publisher.key}'}}"
        config.write_text(f"policy: {source}\nupstream: redis://nowhere\n{listeners}")
        self._origin = Origin(str(config))
        self.changes: list[str] = []
        self.told: list[str] = []
        self.begin()

    def begin(self) -> None:
        """keyfence starts."""
        self.source = PolicySource(PolicyServer("redis://nowhere", signed_as="shop"), None)
        self.provision = Provision(self._origin, source=self.source)
        self.runtime: Any = SimpleNamespace(
            settings=SimpleNamespace(policy_trust=self.publisher.trust),
            policy=SimpleNamespace(revision="in force"),
            tell=self.told.append,
        )
        backend: Any = Backend()
        self.candidates = Candidates(backend, self._note)
        self.one = FleetCandidate(self.provision, self.runtime, self.candidates)

    def _note(self, kind: str, detail: Any) -> None:
        assert kind == CANDIDATE
        self.changes.append(detail["change"])

    def has(self, offer: Offer) -> str:
        """The store has this now. Returns what comes of it."""
        self.source.candidate = offer
        return self.look()

    def look(self) -> str:
        if self.one.is_due:
            asyncio.run(self.one.follow())
        return self.one.state

    def offer(self, number: int, text: str = "", **others: Any) -> Offer:
        """What the publisher signs as a candidate."""
        version = self.publisher.candidate(number, 1, text or by("CubeProxy"), **others)
        return Offer(version.contents["shop.yaml"], version.signed.text())

    def compare(self, purpose: str = "") -> None:
        """An operator compares something here."""
        asyncio.run(self.candidates.begin("own.yaml", Packed(self.runtime.settings, b""), purpose))

    def drop(self) -> None:
        """An operator ends what is compared here."""
        self.one.drop()
        asyncio.run(self.candidates.drop())


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setattr(Loader, "load", load_here)
    return Stage(tmp_path)


def test_a_store_that_was_not_asked_yet_says_nothing_of_a_candidate(stage: Stage) -> None:
    assert not stage.one.is_due
    assert stage.one.state == "none"
    assert stage.has(Offer()) == "none"
    assert stage.changes == []


def test_a_candidate_is_compared_with_what_was_signed_of_it_until_it_has_gone(stage: Stage) -> None:
    assert stage.has(stage.offer(1, message="why")) == "comparing"
    assert not stage.one.is_due
    current = stage.candidates.described()
    assert current is not None
    assert current["file"] == "redis://nowhere:6379/keyfence/shop, candidate 1"
    assert (current["published"]["message"], current["published"]["base"]) == ("why", 1)
    assert stage.has(stage.offer(2)) == "comparing"
    assert stage.has(Offer()) == "none"
    assert stage.candidates.current is None
    assert stage.changes == ["compared", "compared", "withdrawn"]


def test_a_candidate_that_has_gone_because_it_is_in_force_was_promoted(stage: Stage) -> None:
    stage.has(stage.offer(1))
    assert stage.candidates.current is not None
    stage.runtime.policy.revision = stage.candidates.current.packed.revision
    stage.has(Offer())
    assert stage.changes == ["compared", "promoted"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda stage: stage.offer(2)._replace(signature=b"trust me"), "unsigned: this is not a manifest"),
        (
            lambda stage: Offer(b"x", stage.publisher.version(2, "x").signed.text()),
            "unsigned: this is not of the format keyfence-candidate-1",
        ),
        (
            lambda _: Offer(b"x", Publisher().candidate(2, 1, "x").signed.text()),
            "untrusted key: it was signed by the key ",
        ),
        (lambda stage: stage.offer(2, name="other"), "wrong name: it was signed as other"),
        (lambda stage: stage.offer(2)._replace(content=by("CubeMaster").encode()), "changed content: "),
        (lambda stage: stage.offer(2, by("Nobody")), "'Nobody'"),
    ],
)
def test_what_is_refused_is_not_compared_and_ends_the_earlier_comparison(
    made: Any, why: str, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.has(stage.offer(1))
    assert stage.has(made(stage)) == "refused"
    assert stage.candidates.current is None
    assert why in stage.one.fault
    (note,) = stage.one.notes()
    assert note.startswith("the fleet's candidate is refused: ")
    assert why in capsys.readouterr().err
    assert not stage.one.is_due
    assert stage.has(stage.offer(3)) == "comparing"
    assert stage.one.notes() == []


def test_a_key_that_is_no_longer_trusted_ends_the_comparison(stage: Stage) -> None:
    stage.has(stage.offer(1))
    stage.runtime.settings.policy_trust = Publisher().trust
    assert stage.look() == "refused"
    stage.runtime.settings.policy_trust = stage.publisher.trust
    assert stage.look() == "comparing"


def test_a_reload_gives_a_refused_candidate_another_chance(stage: Stage) -> None:
    stage.has(stage.offer(1, by("Nobody")))
    assert not stage.one.is_due
    stage.one.again()
    assert stage.one.is_due
    assert stage.look() == "refused"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_candidate_that_has_gone_does_not_come_back(
    restarts: bool, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    def replayed(offer: Offer) -> bool:
        if restarts:
            stage.begin()
        return stage.has(offer) == "refused" and "replayed: " in stage.one.fault

    first, second, faulty = stage.offer(1), stage.offer(2), stage.offer(3, by("Nobody"))
    for one in (first, second):
        assert stage.has(one) == "comparing"
    assert replayed(first)
    assert stage.has(second) == "comparing", "it is the newest that was seen"
    assert stage.has(faulty) == "refused"
    assert replayed(second), "a newer one has taken its place, although that does not load"
    assert stage.has(stage.offer(4)) == "comparing"
    assert stage.has(Offer()) == "none"
    assert replayed(stage.offer(4)), "it was withdrawn"
    assert stage.has(stage.offer(5)) == "comparing"
    assert "replayed: " in capsys.readouterr().err


def test_one_that_was_withdrawn_while_keyfence_was_away_does_not_come_back(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.has(stage.offer(1))
    stage.begin()
    stage.has(Offer())
    assert stage.has(stage.offer(1)) == "refused"
    assert "replayed: " in capsys.readouterr().err


def test_a_number_that_cannot_be_kept_is_said(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    assert stage.has(stage.offer(1)) == "comparing"
    (note,) = stage.one.notes()
    assert note.startswith("the candidate's number cannot be kept in ")
    (tmp_path / "state").unlink()
    assert stage.has(stage.offer(2)) == "comparing"
    assert stage.one.notes() == []
    assert "cannot be kept" in capsys.readouterr().err


def test_a_damaged_number_is_no_permission(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.has(stage.offer(1))
    (kept,) = (tmp_path / "state").iterdir()
    kept.write_text("{}")
    stage.begin()
    assert stage.has(stage.offer(1)) == "refused"
    assert "this is not the last sequence of a signed policy; remove it" in stage.one.fault
    kept.unlink()
    assert stage.look() == "comparing"
    assert "refused, and not compared" in capsys.readouterr().err


@pytest.mark.parametrize("purpose", ["", CLUSTER])
def test_what_an_operator_compares_here_comes_first(purpose: str, stage: Stage) -> None:
    stage.compare(purpose)
    assert stage.has(stage.offer(1)) == "busy"
    stage.drop()
    assert stage.look() == "comparing"


def test_an_operator_may_replace_or_end_it_here(stage: Stage) -> None:
    stage.has(stage.offer(1))
    stage.compare()
    assert stage.has(stage.offer(2)) == "busy"
    stage.drop()
    assert stage.look() == "comparing"
    stage.drop()
    assert stage.look() == "dropped"
    stage.runtime.settings.policy_trust = stage.publisher.trust._replace(keys=stage.publisher.trust.keys * 2)
    assert stage.look() == "dropped", "it is the same candidate"
    assert stage.has(stage.offer(3)) == "comparing"


# -- a running keyfence


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


def test_a_running_keyfence_says_that_it_refuses_a_candidate_and_compares_the_next_one(
    tmp_path: Path, redis: RedisServer
) -> None:
    instance = Instance(tmp_path, redis)
    with running_redis(tcp=True, password="SECRET") as server:
        stored = Stored(instance, server)
        beside = RedisCandidate(stored.store)
        stored.push(by("CubeMaster"))
        asyncio.run(beside.put(Publisher().candidate(1, 1, by("CubeProxy")), 0))
        instance.run(stored.source, expect_stderr="untrusted key: (.|\n)*unsigned: ")

        def status() -> Any:
            return json.loads(ask(instance.keyfence, "/status")[1])

        def is_refused() -> bool:
            return any("the fleet's candidate is refused: " in text for text in status()["warnings"])

        eventually(is_refused, "it is refused")
        assert status()["policy"]["refused"] is None
        assert metric(instance.keyfence, "keyfence_policy_refused") == 0
        assert instance.is_strictly_ready()
        asyncio.run(beside.put(instance.publisher.candidate(2, 1, by("CubeProxy")), 1))
        eventually(lambda: status()["candidate"], "the next one is compared")
        assert instance.writer() == "CubeMaster", "it changes nothing"
        refused = json.loads(ask(instance.keyfence, "/-/candidate/promote", {})[1])["error"]
        assert "keyfence promote 2 makes it the policy of every instance" in refused
        place_a_candidate_as_a_policy(server, stored)
        instance.refuses("unsigned: this is not of the format keyfence-policy-1")
        instance.stop()


def place_a_candidate_as_a_policy(server: RedisServer, stored: Stored) -> None:
    """As a writer of the store who has no key."""
    with server.client() as client:
        client.copy(KEY, "keyfence:{shop}:version:2")
    stored.point(2)
