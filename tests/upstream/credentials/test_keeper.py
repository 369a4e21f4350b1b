"""A keeper hands on credentials that are new, and keeps those in force while there are none."""

from __future__ import annotations

import asyncio
import dataclasses

from keyfence.upstream.credentials.keeper import Keeper
from keyfence.upstream.credentials.model import Credentials, NoCredentials
from tests.downstream.test_client import in_loop


@dataclasses.dataclass(eq=False)
class Given:
    """A source that gives what it is told to."""

    next: Credentials | Exception
    version: int = 0
    where: str = "keyfence.yaml:3: file"
    shown: str = "file p"
    fetches: int = 0

    async def fetch(self, seconds: float) -> Credentials:
        assert seconds == 5
        self.fetches += 1
        if isinstance(self.next, Exception):
            raise self.next
        return self.next

    def mark(self) -> object:
        return self.version


class Target:
    """An upstream that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def log_in_with(self, credentials: Credentials, number: int) -> None:
        self.told.append(f"{number} {credentials.password}")

    def try_again(self) -> None:
        self.told.append("again")


def kept(source: Given | None) -> tuple[Keeper, Target, list[str]]:
    target, outcomes = Target(), list[str]()
    keeper = Keeper(target, 5, lambda: outcomes.append(keeper.trouble))
    keeper.take(source)
    return keeper, target, outcomes


async def until(condition: object) -> None:
    assert callable(condition)
    while not condition():
        await asyncio.sleep(0.01)


@in_loop
async def test_without_a_source_nothing_is_fetched() -> None:
    keeper, target, outcomes = kept(None)
    await keeper.fetch()
    assert not keeper.refused(0)
    assert keeper.status() is None
    assert (target.told, outcomes) == ([], [])


@in_loop
async def test_only_another_login_is_handed_on() -> None:
    source = Given(Credentials("u", "a"))
    keeper, target, outcomes = kept(source)
    await keeper.fetch()
    await keeper.fetch()
    source.next = Credentials("u", "b")
    await keeper.fetch()
    assert target.told == ["1 a", "2 b"]
    assert outcomes == ["", "", ""]


@in_loop
async def test_a_failure_is_told_with_the_settings_place_and_changes_nothing() -> None:
    source = Given(Credentials("u", "secret"))
    keeper, target, outcomes = kept(source)
    await keeper.fetch()
    source.next = NoCredentials("p is empty", "the secret is out")
    await keeper.fetch()
    assert outcomes[1] == "keyfence.yaml:3: file: p is empty"
    assert keeper.detail == ""  # it holds the password
    source.next = TimeoutError()
    await keeper.fetch()
    assert outcomes[2] == "keyfence.yaml:3: file: file p has not answered within 5 s"
    assert target.told == ["1 secret"]
    status = keeper.status()
    assert status is not None
    assert (status["failures"], status["trouble"]) == (2, outcomes[2])
    assert "secret" not in str(status)


@in_loop
async def test_a_source_that_changes_is_read_again() -> None:
    source = Given(Credentials("u", "a"))
    keeper, target, _ = kept(source)
    await keeper.fetch()
    task = asyncio.ensure_future(keeper.keep_forever())
    source.next, source.version = Credentials("u", "b"), 1
    await until(lambda: target.told == ["1 a", "2 b"])
    task.cancel()


@in_loop
async def test_a_refusal_has_them_fetched_at_once_and_the_upstream_tried_again() -> None:
    source = Given(Credentials("u", "a"))
    keeper, target, _ = kept(source)
    task = asyncio.ensure_future(keeper.keep_forever())
    await until(lambda: target.told == ["1 a"])
    assert keeper.refused(1)
    await until(lambda: target.told == ["1 a", "again"])
    assert not keeper.refused(1)
    assert source.fetches == 2
    task.cancel()


@in_loop
async def test_a_reload_without_a_source_leaves_no_trouble_behind() -> None:
    source = Given(Credentials("u", "a", 4e9))
    keeper, _, outcomes = kept(source)
    await keeper.fetch()
    source.next = NoCredentials("p is empty")
    await keeper.fetch()
    keeper.take(None)
    assert outcomes == ["", "keyfence.yaml:3: file: p is empty", ""]
    assert keeper.rotation.current is None


@in_loop
async def test_a_reload_has_another_source_asked_at_once_and_the_same_one_not() -> None:
    first, second = Given(Credentials("u", "a")), Given(Credentials("u", "b"))
    keeper, target, _ = kept(first)
    task = asyncio.ensure_future(keeper.keep_forever())
    await until(lambda: target.told == ["1 a"])
    keeper.take(first)
    keeper.take(second)
    await until(lambda: target.told == ["1 a", "2 b"])
    assert (first.fetches, second.fetches) == (1, 1)
    task.cancel()
