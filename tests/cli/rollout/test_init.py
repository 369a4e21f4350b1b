"""`keyfence init`: the files that it writes work as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from keyfence.authoring.lint import check_policy
from tests.cli.test_main import Result, keyfence
from tests.servers import Keyfence, RedisServer


def made(folder: Path, *arguments: str) -> None:
    code, out, err = keyfence(
        "init",
        folder,
        "--name",
        "shop",
        "--services",
        "web,stock",
        "--redis",
        "redis://127.0.0.1:6379",
        *arguments,
    )
    assert (code, err) == (0, "")
    assert f"keyfence test {folder}" in out


def test_five_questions_are_asked(tmp_path: Path) -> None:
    code, out, _ = keyfence("init", tmp_path / "new", stdin="shop\nweb, stock\n\n\n\n")
    assert code == 0
    assert [out.count(f"{number}/5  ") for number in range(1, 6)] == [1] * 5
    assert "services: [web, stock]" in (tmp_path / "new" / "policy.yaml").read_text()


@pytest.mark.parametrize("document", ["--document", "--no-document"])
@pytest.mark.parametrize("by", ["listener", "user", "network"])
def test_policy_tests_and_configuration_are_without_faults(by: str, document: str, tmp_path: Path) -> None:
    made(tmp_path, "--by", by, document)
    errors, warnings, _ = check_policy(tmp_path / "policy.yaml")
    assert errors == []
    assert {one.code for one in warnings} == (set() if document == "--document" else {"idle-service"})
    assert keyfence("test", tmp_path).code == 0
    for name in ("keyfence.yaml", "keyfence.container.yaml"):
        assert keyfence("check", tmp_path / name).code == 0
    compose = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    assert compose["services"]["keyfence"]["command"][-1].endswith("keyfence.container.yaml")
    assert set(compose["services"]) == {"keyfence", "redis"}


def test_keyfence_runs_with_the_configuration(redis_server: RedisServer, tmp_path: Path) -> None:
    made(tmp_path, "--by", "listener", "--document")
    config = tmp_path / "keyfence.yaml"
    text = config.read_text().replace("redis://127.0.0.1:6379", redis_server.url)
    for port in (7101, 7102, 9464):  # other tests may have them
        text = text.replace(f"127.0.0.1:{port}", "127.0.0.1:0")
    config.write_text(text + "findings: none\n")
    with Keyfence("--config", config) as running:
        client = running.client("web")
        assert client.set("shop:web:example:1", "x", ex=60)
        client.close()


def init(folder: Path, redis: str) -> Result:
    arguments = ("--name", "shop", "--services", "web", "--by", "user", "--document")
    return keyfence("init", folder, *arguments, "--redis", redis)


def modes(folder: Path) -> dict[str, str]:
    return {one.name: f"{one.stat().st_mode & 0o777:o}" for one in folder.glob("*.yaml")}


def test_only_its_owner_can_read_a_file_with_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    code, out, err = init(tmp_path / "far", "redis://u:se%2F\\cret@redis.shop:6379")
    assert (code, "secret" in out + err) == (0, False)
    assert err == (
        "keyfence: the password is in keyfence.yaml and keyfence.container.yaml, which only you can read, "
        "and no container's user; write ${NAME} or file:PATH in its place\n"
    )
    far = modes(tmp_path / "far")
    assert {name for name, mode in far.items() if mode == "600"} == {
        "keyfence.yaml",
        "keyfence.container.yaml",
    }
    # The container has a Redis of its own.
    assert (
        "the password is in keyfence.yaml, which" in init(tmp_path / "near", "redis://:secret@127.0.0.1").err
    )
    near = modes(tmp_path / "near")
    assert {name for name, mode in near.items() if mode == "600"} == {"keyfence.yaml"}
    for name, url in (("none", "redis://redis.shop"), ("variable", "redis://u:${REDIS_PASSWORD}@redis.shop")):
        assert init(tmp_path / name, url).err == ""
        assert "600" not in modes(tmp_path / name).values()


def test_the_container_gets_the_variables_that_the_address_of_redis_refers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_USER", "web")
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    for url, variables in (
        ("redis://${REDIS_USER}:${REDIS_PASSWORD}@redis.shop", ["REDIS_USER", "REDIS_PASSWORD"]),
        ("redis://:${REDIS_PASSWORD}@127.0.0.1", None),  # the container has a Redis of its own
        ("redis://redis.shop", None),
    ):
        folder = tmp_path / str(len(url))
        assert init(folder, url).code == 0
        compose = yaml.safe_load((folder / "compose.yaml").read_text())
        assert compose["services"]["keyfence"].get("environment") == variables


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    made(tmp_path, "--by", "user", "--document")
    code, _, err = keyfence("init", tmp_path, "--name", "other", "--services", "a", "--by", "user",
                            "--redis", "redis://127.0.0.1:6379", "--document")  # fmt: skip
    assert (code, "policy.yaml exists; name another folder, or keep this policy with --policy" in err) == (
        2,
        True,
    )
    assert "policy: shop" in (tmp_path / "policy.yaml").read_text()


def test_a_policy_that_is_there_answers_most_questions(tmp_path: Path) -> None:
    draft = tmp_path / "policy.yaml"
    draft.write_text(
        "policy: shop\nclaims: ['shop:']\nservices: [web, stock]\n"
        "keys: {a: {key: 'shop:a', writers: [web, stock]}}\n"
    )
    before = draft.read_text()
    code, out, err = keyfence("init", tmp_path, "--policy", draft, stdin="\n\n")
    assert (code, err) == (0, "")
    assert [number for number in range(1, 6) if f"{number}/5  " in out] == [3, 4]
    assert "Written to" in out
    assert draft.read_text() == before
    names = ["compose.yaml", "keyfence.container.yaml", "keyfence.yaml", "policy.yaml"]
    assert sorted(one.name for one in tmp_path.iterdir()) == names
    assert "service: stock" in (tmp_path / "keyfence.yaml").read_text()
    assert keyfence("check", tmp_path / "keyfence.yaml").code == 0


def test_a_policy_that_is_there_must_fit(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("policy: shop\nservices: [web]\n")
    common = ("--by", "listener", "--redis", "redis://127.0.0.1:6379", "--policy")
    for arguments, said in (
        ((tmp_path, *common, tmp_path / "shop.yaml", "--name", "x"), "--name and --policy cannot be given"),
        ((tmp_path / "own", *common, tmp_path / "shop.yaml"), "must be in the folder"),
        ((tmp_path, *common, tmp_path / "none.yaml"), "none.yaml"),
    ):
        code, _, err = keyfence("init", *arguments)
        assert (code, said in err) == (2, True), err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["shop.yaml"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--name", "a b", "'a b' is not a name"),
        ("--services", "web,unknown", "'unknown' is not a name for a service"),
        ("--services", ",", "name at least one service"),
        ("--redis", "http://x", "redis://"),
    ],
)
def test_answers_that_cannot_be_are_errors(option: str, value: str, message: str, tmp_path: Path) -> None:
    given = {"--name": "shop", "--services": "web", "--by": "user", "--redis": "redis://127.0.0.1:6379"}
    arguments = [text for pair in (given | {option: value}).items() for text in pair]
    code, _, err = keyfence("init", tmp_path / "new", *arguments, "--document")
    assert (code, message in err) == (2, True)
    assert not (tmp_path / "new").exists()
