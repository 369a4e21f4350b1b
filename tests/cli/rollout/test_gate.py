from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY
from keyfence.findings.gate.baseline import read_baseline
from keyfence.findings.store import Store
from keyfence.policy.units import clock_text
from tests.cli.test_main import keyfence, process
from tests.findings.rows import batch, row
from tests.servers import Keyfence, RedisServer

POLICY = """
policy: shop
owner: {team: billing, contact: "#billing"}
claims: ["order:", "cart:"]
services: [shop, billing]
keys:
  order: {key: "order:<id>", writers: [billing], readers: [shop]}
  cart: {key: "cart:<id>", writers: [shop]}
placeholders: {id: "[0-9]+"}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/findings.db"


def fill(url: str, *commands: str, at: float | None = None, asked: int = 5) -> None:
    """Writes a store: commands that were evaluated, and one finding for each of these commands."""
    at = time.time() if at is None else at
    database = Database(url)
    Store(database, "here:1").write(batch(*(row(at=at, command=one) for one in commands), at=at, asked=asked))
    database.close()


@pytest.fixture
def serve(tmp_path: Path, policy: Path, redis_server: RedisServer, url: str) -> list[str | Path]:
    """The arguments of a keyfence with a store and a decision log."""
    arguments = ["--policy", policy, "--upstream", redis_server.url, "--listen", "127.0.0.1:0"]
    arguments += ["--service", "shop", "--admin", "127.0.0.1:0", "--findings", url]
    return [*arguments, "--decision-log", tmp_path / "decisions.jsonl"]


@pytest.fixture
def running(serve: list[str | Path]) -> Iterator[Keyfence]:
    with Keyfence(*serve) as proxy:
        yield proxy


# -- a findings store


def test_a_store_with_new_findings_fails(url: str) -> None:
    fill(url, "SET")
    code, out, err = keyfence("gate", url)
    assert (code, err) == (1, "")
    assert out.startswith("keyfence gate: 1 new finding; 5 commands evaluated\n\nfinding ")
    assert max(map(len, out.splitlines())) <= 80


def test_a_store_with_traffic_and_without_findings_is_clean(url: str) -> None:
    fill(url)
    assert keyfence("gate", url) == (0, "keyfence gate: no new findings; 5 commands evaluated\n", "")


def test_a_store_without_traffic_has_a_code_of_its_own(url: str) -> None:
    fill(url, asked=0)
    code, out, _ = keyfence("gate", url)
    assert (code, out) == (3, "keyfence gate: no traffic was judged: this run proves nothing\n")


def test_what_was_seen_before_is_not_new_since(url: str) -> None:
    fill(url, "SET", at=time.time() - 3 * DAY)
    fill(url, "SET")
    assert keyfence("gate", url, "--since", "1d").code == 0
    assert keyfence("gate", url, "--since", "4d").code == 1
    fill(url, "DEL")
    assert keyfence("gate", url, "--since", "1d").code == 1


def test_traffic_before_the_time_is_silence_since(url: str) -> None:
    fill(url, at=time.time() - 60)
    assert keyfence("gate", url, "--since", "30s").code == 3
    assert keyfence("gate", url, "--since", "90s").code == 0


@pytest.mark.parametrize("form", ["text", "json", "markdown", "junit", "github"])
def test_every_format_ends_with_the_same_code(form: str, url: str) -> None:
    fill(url, "SET")
    code, out, err = keyfence("gate", url, "--format", form)
    assert (code, err) == (1, "")
    assert "scope.write" in out
    assert out.endswith("\n")


# -- baselines


def test_a_baseline_makes_known_findings_pass_and_new_ones_fail(url: str, tmp_path: Path) -> None:
    fill(url, "SET")
    known = tmp_path / "known.yaml"
    code, out, err = keyfence("gate", url, "--write-baseline", known)
    assert (code, out, err) == (0, "", f"keyfence: {known} knows 1 finding\n")
    code, out, _ = keyfence("gate", url, "--baseline", known)
    assert (code, out) == (
        0,
        "keyfence gate: no new findings; 5 commands evaluated\n\nnot counted: 1 known\n",
    )
    fill(url, "DEL")
    code, out, _ = keyfence("gate", url, "--baseline", known, "--format", "json")
    assert (code, [one["command"] for one in json.loads(out)["new"]]) == (1, ["DEL"])


def test_a_baseline_can_be_added_to(url: str, tmp_path: Path) -> None:
    known, other = tmp_path / "known.yaml", f"sqlite:///{tmp_path}/other.db"
    fill(url, "SET")
    fill(other, "DEL")
    keyfence("gate", url, "--write-baseline", known)
    assert keyfence("gate", other, "--baseline", known, "--write-baseline", known).code == 0
    assert [one.command for one in read_baseline(str(known))] == ["DEL", "SET"]
    assert keyfence("gate", other, "--write-baseline", known).code == 0
    assert [one.command for one in read_baseline(str(known))] == ["DEL"]


def test_silence_writes_no_baseline(url: str, tmp_path: Path) -> None:
    fill(url, asked=0)
    known = tmp_path / "known.yaml"
    code, _, err = keyfence("gate", url, "--write-baseline", known)
    assert (code, err) == (3, f"keyfence: no traffic was judged, so {known} is not written\n")
    assert not known.exists()


# -- wrong usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("sqlite:////nowhere/findings.db",),
            "the findings store sqlite:////nowhere/findings.db cannot be opened",
        ),
        (("sqlite://x",), "'sqlite://x' has two slashes; write sqlite:///FILE, or sqlite:////PATH/FILE"),
        (
            ("postgresql://u@127.0.0.1:1/d",),
            "the findings store postgresql://u@127.0.0.1:1/d cannot be opened",
        ),
        (("127.0.0.1:1",), "keyfence: http://127.0.0.1:1/evidence?…: no keyfence answers there"),
        (("missing.jsonl",), "missing.jsonl: No such file or directory"),
        (("x", "--admin", "127.0.0.1:1"), "give either --admin or an argument, not both"),
        (("sqlite:///x.db", "--admin", "127.0.0.1:1"), "give either --admin or an argument, not both"),
        (("x", "--since", "1d", "--baseline", "b"), "are two ways to say what is new; give one of them"),
        (("x", "--since", "2999-01-01"), "--since is in the future; name a time that has passed"),
        (("x", "--since", "soon"), "'soon' is not a time"),
        (("x", "--baseline", "missing.yaml"), "missing.yaml:1:1: error: cannot be read: No such file"),
        (("x", "--baseline", "missing.yaml"), "--write-baseline missing.yaml writes a new one"),
    ],
)
def test_wrong_usage_is_one_sentence_and_code_2(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = keyfence("gate", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_baseline_that_cannot_be_written_is_told(url: str, tmp_path: Path) -> None:
    fill(url, "SET")
    code, _, err = keyfence("gate", url, "--write-baseline", tmp_path / "no" / "b.yaml")
    assert (code, err) == (
        2,
        f"keyfence: {tmp_path}/no/b.yaml cannot be written: No such file or directory\n",
    )


# -- a running keyfence


def test_a_running_keyfence_is_judged_up_to_its_last_command(running: Keyfence, tmp_path: Path) -> None:
    known = tmp_path / "known.yaml"
    assert keyfence("gate", "--admin", running.ready.admin).code == 3
    with running.client() as client:
        client.set("cart:1", "x")
        assert keyfence("gate", running.ready.admin).code == 0
        client.set("order:1", "x")
        assert keyfence("gate", running.ready.admin).code == 1
        assert keyfence("gate", running.ready.admin, "--write-baseline", known).code == 0
        client.set("order:2", "x")
        assert keyfence("gate", running.ready.admin, "--baseline", known).code == 0
        client.delete("order:1")
        code, out, _ = keyfence("gate", running.ready.admin, "--baseline", known)
    assert code == 1
    assert re.search(r"\nf-[0-9a-f]{12}  scope.write  shop     DEL          1\n", out)


def test_a_stricter_policy_than_the_one_that_commands_were_seen_under_is_not_green(
    running: Keyfence, policy: Path, url: str
) -> None:
    with running.client() as client:
        for number in range(3):
            client.set(f"cart:{number}", "x")
        assert keyfence("gate", running.ready.admin).code == 0
        policy.write_text(POLICY.replace("writers: [shop]", "writers: [billing]"))
        assert keyfence("reload", "--admin", running.ready.admin).code == 0
        reloaded = clock_text(time.time() + 1)
        for source in (running.ready.admin, url):
            code, out, _ = keyfence("gate", source)
            assert code == 3
            assert out.startswith("keyfence gate: not known: no new findings, but the policy has changed ")
            assert "\nnot known for shop and scope.write: commands were seen until " in out
        known = keyfence("what-if", "--admin", running.ready.admin, "--mode", "scope.write=enforce")
        assert (known.code, "not known for shop and scope.write" in known.out) == (1, True)
        time.sleep(1)
        client.get("order:1")
        assert keyfence("gate", running.ready.admin, "--since", reloaded.replace(" ", "T")).code == 0


def test_store_admin_and_decision_log_know_the_same_findings(
    serve: list[str | Path], tmp_path: Path, url: str
) -> None:
    with Keyfence(*serve) as proxy, proxy.client() as client:
        client.set("order:1", "x")
        client.set("strange:7:é", "x")
        client.hset("cart:1", "a", "b")
        with pytest.raises(redis.ResponseError):
            client.eval("return redis.error_reply('ERR no')", 0)
        sources = [proxy.ready.admin, url]
        answers = [json.loads(keyfence("gate", one, "--format", "json").out)["new"] for one in sources]
    log = json.loads(keyfence("gate", tmp_path / "decisions.jsonl", "--format", "json").out)["new"]
    ids = [{one["id"]: one["total"] for one in answer} for answer in (*answers, log)]
    assert len(ids[0]) >= 3
    assert ids[0] == ids[1] == ids[2]
    assert all(one["owner"] == "#billing" for one in answers[0] if one["rule"] == "scope.write")


def test_a_keyfence_without_a_store_cannot_be_judged(policy: Path, redis_server: RedisServer) -> None:
    arguments = ["--policy", policy, "--upstream", redis_server.url, "--listen", "127.0.0.1:0"]
    with Keyfence(*arguments, "--admin", "127.0.0.1:0", "--findings", "none") as proxy:
        code, out, err = keyfence("gate", proxy.ready.admin)
    assert (code, out) == (2, "")
    assert "keyfence runs without a findings store" in err


# -- a decision log


def test_an_empty_decision_log_is_silence(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    log.write_text("")
    assert keyfence("gate", log).code == 3


def test_a_decision_log_with_unreadable_lines_is_never_clean(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    log.write_text("not json\n")
    code, _, err = keyfence("gate", log)
    assert code == 2
    assert err == (
        f"keyfence: {log}: line 1 is skipped: not JSON (Expecting value at column 1)\n"
        f"keyfence: {log}: lines that cannot be read may hide findings; mend the file, or name another\n"
    )


def test_a_decision_log_is_read_from_standard_input() -> None:
    assert process("gate", "-", stdin=b"").code == 3
