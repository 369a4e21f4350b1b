"""Only what checks and passes its tests is signed, and old content only if its own signature is right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyfence.fleet.keys import parse_public
from tests.cli.test_main import Result, keyfence
from tests.fleet.publishing import Publisher
from tests.servers import RedisServer, running_redis

POLICY = """policy: shop
claims: ["a:"]
services: [one]
placeholders: {word: "[a-z]+"}
scopes: {s: {prefix: "a:", writers: [one]}}
keys: {words: {key: "a:<word>", type: string}}
"""
TESTS = "policy: shop.yaml\ntests: [{service: one, command: 'SET a:k v'}]\n"


class Shop:
    """A policy with a test, a key, and a folder as its store."""

    def __init__(self, folder: Path) -> None:
        self.publisher = Publisher()
        self.folder, self.store = folder, folder / "store"
        self.policy = folder / "shop.yaml"
        self.policy.write_text(POLICY)
        (folder / "shop.test.yaml").write_text(TESTS)
        self.key = self.publisher.key_file(folder)

    def push(self, *more: str | Path) -> Result:
        return keyfence("push", self.policy, "--to", self.store, "--key", self.key, *more)

    def rollback(self, sequence: int, *more: str | Path) -> Result:
        to = ("--to", self.store, "--name", "shop", "--key", self.key)
        return keyfence("rollback", str(sequence), *to, *more)

    def history(self, *more: str | Path) -> Result:
        return keyfence("history", "--from", self.store, "--name", "shop", *more)

    def verify(self, *more: str | Path) -> Result:
        return keyfence("verify", *more, "--name", "shop", "--trust", self.publisher.key)

    @property
    def current(self) -> str:
        return (self.store / "current" / "shop.yaml").read_text()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_new_key_is_for_its_owner_only_and_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    code, out, err = keyfence("key", file)
    assert (code, err) == (0, "")
    parse_public(out.strip())
    assert file.stat().st_mode & 0o777 == 0o600
    assert keyfence("key", "--show", file).out == out
    code, out, err = keyfence("key", file)
    assert (code, out) == (2, "")
    assert "exists already" in err
    assert "cannot be written: No such file" in keyfence("key", tmp_path / "no" / "key").err


def test_what_was_pushed_is_signed_stored_and_listed(shop: Shop) -> None:
    code, out, err = shop.push("--message", "first", "--author", "ada")
    assert (code, err) == (0, "")
    assert (
        out == f"pushed shop 1 to {shop.store}, signed by {shop.publisher.signer.public.id}; 1 test passed\n"
    )
    shop.policy.write_text(POLICY + "# two\n")
    answer = json.loads(shop.push("--format", "json").out)
    assert (answer["sequence"], list(answer["files"])) == (2, ["shop.yaml"])
    assert keyfence("history", "--from", shop.folder / "other", "--name", "shop").out.endswith(
        "other has no version of shop.\n"
    )
    rows = json.loads(shop.history("--trust", shop.publisher.key, "--format", "json").out)
    assert [(one["sequence"], one["state"]) for one in rows] == [(2, "signed"), (1, "signed")]
    assert (rows[1]["author"], rows[1]["message"]) == ("ada", "first")
    assert re.search(r"not checked +first", shop.history().out)
    for policy in (shop.store / "current", shop.store / "current" / "shop.yaml"):
        assert f"{policy}: shop 2, signed by" in shop.verify(policy).out


def test_a_policy_with_faults_or_failing_tests_is_not_stored(shop: Shop) -> None:
    shop.policy.write_text(POLICY.replace("[one]}}", "[two]}}"))
    code, _, err = shop.push()
    assert (code, "'two'" in err, "has faults; nothing was stored" in err) == (1, True, True)
    shop.policy.write_text(POLICY.replace("a-z", "x-z"))
    code, _, err = shop.push()
    assert (code, "shop.test.yaml:2" in err, "tests of" in err) == (1, True, True)
    assert not shop.store.exists()


def test_a_file_that_no_instance_would_find_is_not_pushed(shop: Shop) -> None:
    other = shop.policy.rename(shop.policy.with_suffix(".policy"))
    code, out, err = keyfence("push", other, "--key", shop.key, "--to", shop.store)
    assert (code, out) == (2, "")
    assert (
        err == f"keyfence: {other} does not end in .yaml or .yml, so no instance would find it; rename it\n"
    )
    assert not shop.store.exists()


def test_a_rollback_publishes_old_content_as_a_new_version(shop: Shop) -> None:
    shop.push()
    shop.policy.write_text(POLICY + "# two\n")
    shop.push()
    code, out, _ = shop.rollback(1)
    assert (code, out.startswith("pushed shop 3 ")) == (0, True)
    assert shop.current == POLICY
    assert "rollback to 1" in shop.history().out
    code, _, err = shop.rollback(9)
    assert (code, "has no version 9; keyfence history lists them" in err) == (1, True)


def test_content_that_was_changed_in_the_store_gets_no_good_signature(shop: Shop) -> None:
    shop.push()
    shop.push()
    (shop.store / "1" / "shop.yaml").write_text(POLICY + "# changed\n")
    code, _, err = shop.rollback(1)
    assert (code, "shop.yaml has another content than was signed" in err) == (1, True)
    assert shop.history("--trust", shop.publisher.key).code == 1
    stranger = Publisher()
    signed = stranger.sign(2, {"shop.yaml": POLICY})
    (shop.store / "2" / "policy.sig").write_bytes(signed.text())
    code, _, err = shop.rollback(2)
    assert (code, "untrusted key" in err) == (1, True)
    assert shop.rollback(2, "--trust", stranger.key).code == 0


def test_a_sequence_only_rises(shop: Shop) -> None:
    assert "pushed shop 42 " in shop.push("--sequence", "42").out
    code, _, err = shop.push("--sequence", "42")
    assert (code, "has sequence 42 already; give a larger one" in err) == (2, True)
    assert "pushed shop 43 " in shop.push().out


def test_a_policy_that_is_not_as_it_was_signed_is_said_to_be(shop: Shop) -> None:
    shop.push()
    signed = shop.store / "1" / "shop.yaml"
    assert shop.verify(signed).code == 0
    signed.write_text(POLICY + "#\n")
    code, _, err = shop.verify(signed)
    assert (code, "changed content: shop.yaml has another content" in err) == (2, True)
    assert "unsigned: the signature cannot be read" in shop.verify(shop.policy).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "redis://:SECRET@127.0.0.1:1/a/b/c"), "neither a database nor a prefix of keys"),
        (("--to", ""), "the store: it has no name"),
        (("--to", "s3://SECRET"), "this is not the URL of a Redis"),
        (("--to", "file:/nowhere"), "/nowhere cannot be read"),
        (("--to", "x", "--name", "a b"), "--name: a name has 1 to 64 letters"),
        (("--to", "x", "--key", "/nowhere"), "--key: /nowhere cannot be read"),
        (("--to", "x", "--key", ""), "give the private key that signs with --key FILE"),
        (("--to", "x", "--message", "m" * 1001), "this has more than 1000 characters"),
    ],
)
def test_a_mistake_is_one_line_without_a_secret(arguments: tuple[str, ...], message: str, shop: Shop) -> None:
    code, out, err = keyfence("push", shop.policy, "--key", shop.key, *arguments)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert "SECRET" not in err


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(tcp=True, password="SECRET") as one:
        yield one


def test_a_redis_is_a_store_too_and_its_password_is_not_shown(
    shop: Shop, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "SECRET")
    to = f"redis://:${{STORE_PASSWORD}}@127.0.0.1:{server.port}/team"
    code, out, err = keyfence("push", shop.policy, "--to", to, "--key", shop.key)
    assert (code, err) == (0, "")
    assert f"pushed shop 1 to redis://127.0.0.1:{server.port}/team/shop" in out
    (shop.folder / "url").write_text(to.replace("${STORE_PASSWORD}", "SECRET"))
    code, out, err = keyfence("history", "--from", f"file:{shop.folder}/url", "--name", "shop")
    assert (code, err, "not checked" in out) == (0, "", True)
    plain = to.replace("${STORE_PASSWORD}", "SECRET")
    code, out, err = keyfence("push", shop.policy, "--to", plain, "--key", shop.key)
    assert (code, "process listings show it" in err, "SECRET" in out + err) == (0, True, False)
    wrong = to.replace("${STORE_PASSWORD}", "${HOME}")
    code, out, err = keyfence("push", shop.policy, "--to", wrong, "--key", shop.key)
    assert (code, "does not accept the login" in err) == (1, True)


def test_a_folder_with_scripts_goes_to_a_folder_and_not_to_redis(shop: Shop, server: RedisServer) -> None:
    folder = shop.folder / "policies"
    (folder / "lua").mkdir(parents=True)
    (folder / "lua" / "x.lua").write_text("return 1")
    script = "scripts: {x: {source: lua/x.lua, keys: 1, writes: ['{KEYS}']}}\n"
    (folder / "shop.yaml").write_text(POLICY + script)
    named = ("--name", "shop", "--key", shop.key)
    assert keyfence("push", folder, "--to", shop.store, *named).code == 0
    assert (shop.store / "current" / "lua" / "x.lua").read_text() == "return 1"
    assert shop.verify(shop.store / "current").code == 0
    code, _, err = keyfence("push", folder, "--to", f"redis://:SECRET@127.0.0.1:{server.port}", *named)
    assert (code, "push a folder, or scripts, to a folder" in err) == (2, True)


def test_a_test_whose_policy_is_a_loop_of_links_is_another_policy_s(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "loop.test.yaml").write_text(TESTS.replace("shop.yaml", "loop.yaml"))
    assert shop.push().code == 0
