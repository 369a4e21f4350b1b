"""A candidate in a store: pushed as a policy is, promoted only as it was looked at, and withdrawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.publish.test_publish import POLICY, TESTS
from tests.cli.test_main import Result, keyfence
from tests.fleet.publishing import Publisher
from tests.servers import RedisServer, running_redis

KEY = "keyfence:{shop}:candidate"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(tcp=True) as one:
        yield one


class Shop:
    """A policy with a test, a key, and a Redis as its store, which has one version."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        server.clear()
        self.publisher, self.server, self.folder = Publisher(), server, folder
        self.url = f"redis://127.0.0.1:{server.port}"
        self.policy = folder / "shop.yaml"
        self.policy.write_text(POLICY)
        (folder / "shop.test.yaml").write_text(TESTS)
        self.key = self.publisher.key_file(folder)
        assert self.push().code == 0

    def push(self, *more: str) -> Result:
        return keyfence("push", self.policy, "--to", self.url, "--key", self.key, *more)

    def promote(self, number: int, *more: str) -> Result:
        to = ("--to", self.url, "--name", "shop", "--key", self.key)
        return keyfence("promote", str(number), *to, *more)

    def withdraw(self, *more: str) -> Result:
        return keyfence("withdraw", "--to", self.url, "--name", "shop", *more)

    def versions(self) -> list[tuple[int, str]]:
        """The sequences of the store, with their messages."""
        found = keyfence(
            "history", "--from", self.url, "--name", "shop", "--trust", self.publisher.key, "--json"
        )
        assert found.code == 0
        return [(one["sequence"], one["message"]) for one in json.loads(found.out)]


@pytest.fixture
def shop(tmp_path: Path, server: RedisServer) -> Shop:
    return Shop(tmp_path, server)


def test_a_candidate_is_checked_tested_signed_and_no_version(shop: Shop) -> None:
    shop.policy.write_text(POLICY + "# two\n")
    code, out, err = shop.push("--candidate", "--message", "two")
    assert (code, err) == (0, "")
    key = shop.publisher.signer.public.id
    assert out == (
        f"pushed candidate shop 1 to {shop.url}/keyfence/shop, based on version 1, signed by {key}; "
        "1 test passed\n"
    )
    assert shop.versions() == [(1, "")]
    shop.policy.write_text(POLICY.replace("a-z", "x-z"))
    code, _, err = shop.push("--candidate")
    assert (code, "tests of" in err) == (1, True)


def test_what_was_looked_at_becomes_the_next_version_byte_for_byte(shop: Shop) -> None:
    shop.policy.write_text(POLICY + "# two\n")
    shop.push("--candidate", "--message", "two", "--author", "ada")
    shop.policy.write_text(POLICY + "# three\n")
    code, out, err = shop.promote(1, "--author", "bob", "--format", "json")
    assert (code, err) == (0, "")
    assert (json.loads(out)["sequence"], json.loads(out)["author"]) == (2, "bob")
    with shop.server.client(decode_responses=True) as client:
        assert client.hget("keyfence:{shop}:version:2", "content") == POLICY + "# two\n"
        assert not client.exists(KEY)
    assert shop.versions() == [(2, "two"), (1, "")]
    code, _, err = shop.promote(1)
    assert (code, "has no candidate; store one with keyfence push --candidate" in err) == (1, True)


def test_another_candidate_than_the_one_that_was_looked_at_is_not_promoted(shop: Shop) -> None:
    shop.push("--candidate")
    shop.push("--candidate")
    code, _, err = shop.promote(1)
    assert (code, "has candidate 2, and not 1; look at keyfence fleet diff" in err) == (1, True)
    assert shop.versions() == [(1, "")]


def test_a_candidate_that_was_overtaken_is_promoted_only_on_purpose(shop: Shop) -> None:
    shop.push("--candidate")
    shop.push()
    code, _, err = shop.promote(1)
    assert (code, "is based on version 1, and 2 is the newest" in err, "--anyway" in err) == (1, True, True)
    assert shop.promote(1, "--anyway").code == 0
    assert [sequence for sequence, _ in shop.versions()] == [3, 2, 1]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("content", POLICY + "# changed\n", "shop.yaml has another content than was signed"),
        ("signature", "none", "what is there is not signed as a candidate"),
    ],
)
def test_a_candidate_that_was_changed_gets_no_good_signature(
    shop: Shop, field: str, value: str, why: str
) -> None:
    shop.push("--candidate")
    with shop.server.client() as client:
        client.hset(KEY, field, value)
    code, _, err = shop.promote(1)
    assert (code, why in err) == (1, True)
    assert shop.versions() == [(1, "")]


def test_a_candidate_of_another_key_is_promoted_if_that_is_trusted(shop: Shop) -> None:
    author = Publisher()
    shop.key.write_bytes(author.pem)
    shop.push("--candidate")
    shop.key.write_bytes(shop.publisher.pem)
    code, _, err = shop.promote(1)
    assert (code, "untrusted key" in err) == (1, True)
    assert shop.promote(1, "--trust", author.key).code == 0
    assert [sequence for sequence, _ in shop.versions()] == [2, 1]


def test_what_is_signed_as_a_version_is_no_candidate(shop: Shop) -> None:
    with shop.server.client() as client:
        client.copy("keyfence:{shop}:version:1", KEY)
    code, _, err = shop.promote(1)
    assert (code, "what is there is not signed as a candidate" in err) == (1, True)
    assert shop.withdraw().out.startswith("withdrew what was no candidate from ")


def test_a_candidate_is_withdrawn_and_its_number_is_not_used_again(shop: Shop) -> None:
    shop.push("--candidate")
    code, out, err = shop.withdraw()
    assert (code, out, err) == (0, f"withdrew candidate shop 1 from {shop.url}/keyfence/shop\n", "")
    assert shop.withdraw().code == 1
    answer = json.loads(shop.push("--candidate", "--format", "json").out)
    assert (answer["sequence"], answer["base"]) == (2, 1)
    assert json.loads(shop.withdraw("--format", "json").out)["withdrawn"]["sequence"] == 2


def test_a_store_that_can_have_no_candidate_says_so(shop: Shop, tmp_path: Path) -> None:
    folder = ("--to", str(tmp_path / "store"), "--name", "shop")
    for command in (
        ("push", shop.policy, "--candidate", "--key", shop.key, *folder),
        ("promote", "1", "--key", shop.key, *folder),
        ("withdraw", *folder),
    ):
        code, out, err = keyfence(*command)
        assert (code, out) == (2, "")
        assert err.endswith("store is a folder, and candidates are in a Redis; name redis://HOST:PORT\n")
    shop.server.clear()
    code, _, err = shop.push("--candidate")
    assert (code, "has no version yet, so there is nothing to compare with" in err) == (1, True)
