"""A candidate policy on the traffic of a running keyfence: loaded, shown, promoted and dropped."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.resp import encode
from tests.cli.test_main import keyfence as command_line
from tests.clients.running import ask, eventually, metric
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, running_redis

Start = Callable[..., Keyfence]
POLICY = """policy: shop
claims: ["shop:"]
services: [web, billing]
placeholders: {id: "[a-z0-9]{1,9}"}
scopes: {shop: {prefix: "shop:", writers: [web, billing]}}
keys:
  cart: {key: "shop:cart:<id>", type: hash}
  note: {key: "shop:note:<id>", type: string}
"""
# Only billing may write notes, and nobody needs an entry for orders any more.
NEW = POLICY.replace('<id>", type: string}', '<id>", type: string, writers: [billing], readers: [web]}') + (
    '  order: {key: "shop:order:<id>", type: string}\n'
)
WORKERS = pytest.mark.parametrize("more", [(), ("workers: 2",)], ids=["alone", "workers"])
NOTE = ("SET", "shop:note:1", "v")
ORDER = ("SET", "shop:order:7", "v")
CART = ("HGET", "shop:cart:1", "size")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


class Stage:
    """A running keyfence with a policy and a candidate's file."""

    def __init__(
        self, folder: Path, server: RedisServer, start: Start, *more: str, flags: tuple[str, ...] = ()
    ) -> None:
        self.policy = folder / "policy.yaml"
        self.candidate = folder / "new.yaml"
        self.policy.write_text(POLICY)
        self.candidate.write_text(NEW)
        lines = [
            "policy: policy.yaml",
            f"upstream: {server.url}",
            "admin: 127.0.0.1:0",
            'listeners: [{listen: "127.0.0.1:0", service: web}, {listen: "127.0.0.1:0", service: billing}]',
            *more,
        ]
        self.config = folder / "keyfence.yaml"
        self.config.write_text("\n".join(lines) + "\n")
        self.keyfence = start("--config", self.config, *flags)

    def send(self, service: str, *commands: tuple[str, ...]) -> list[bytes]:
        """The first bytes of each reply."""
        with self.keyfence.connect(service) as connection:
            answers = []
            for command in commands:
                connection.sendall(encode.command(*command))
                answers.append(connection.recv(1000)[:7])
            return answers

    def load(self) -> Any:
        status, body = ask(self.keyfence, "/-/candidate", {"file": str(self.candidate)})
        assert status == 200, body
        return json.loads(body)

    def show(self) -> Any:
        return json.loads(ask(self.keyfence, "/candidate")[1])

    def rows(self) -> dict[tuple[str, str, str, str, str], int]:
        return {
            (row["change"], row["service"], row["rule"], row["command"], row["entry"]): row["count"]
            for row in self.show()["rows"]
        }

    def post(self, path: str) -> tuple[int, Any]:
        status, body = ask(self.keyfence, path, {})
        return status, json.loads(body)


@pytest.fixture
def stage(tmp_path: Path, server: RedisServer, start_keyfence: Start) -> Callable[..., Stage]:
    server.clear()
    return lambda *more, **options: Stage(tmp_path, server, start_keyfence, *more, **options)


@WORKERS
def test_a_candidate_is_compared_on_live_traffic_and_promoted(
    more: tuple[str, ...], stage: Callable[..., Stage]
) -> None:
    one = stage("modes: [{mode: enforce}]", *more)
    assert one.show() == {"candidate": None, "in_force": one.show()["in_force"], "commands": {}, "rows": []}
    loaded = one.load()
    assert (loaded["file"], loaded["policy"]) == (str(one.candidate), "shop")
    for _ in range(5):
        assert one.send("web", NOTE, ORDER, CART) == [b"+OK\r\n", b"-NOPERM", b"$-1\r\n"]
        assert one.send("billing", NOTE, CART) == [b"+OK\r\n", b"$-1\r\n"]
    shown = one.show()
    assert shown["candidate"] == loaded
    assert shown["commands"] == {"web": 15, "billing": 10}
    assert one.rows() == {
        ("new", "web", "scope.write", "SET", "note"): 5,
        ("gone", "web", "key.unregistered", "SET", "shop"): 5,
    }
    (row,) = [row for row in shown["rows"] if row["change"] == "new"]
    assert (row["example"], row["actions"]) == ("shop:note:1", {"refused": 5})
    assert metric(one.keyfence, "keyfence_candidate_commands_total", service="web") == 15
    labels = {"service": "web", "rule": "scope.write"}
    assert metric(one.keyfence, "keyfence_candidate_violations_total", **labels, change="new") == 5
    assert metric(one.keyfence, "keyfence_violations_total", rule="scope.write") == 0

    status, refused = one.post("/-/candidate/promote")
    assert status == 400
    assert "write the candidate" in refused["error"]
    assert one.send("web", NOTE) == [b"+OK\r\n"]

    one.policy.write_text(NEW)
    status, promoted = one.post("/-/candidate/promote")
    assert (status, promoted["revision"], promoted["changed"]) == (200, loaded["revision"], ["policy"])
    assert one.send("web", NOTE, ORDER) == [b"-NOPERM", b"+OK\r\n"]
    assert one.show()["candidate"] is None
    assert one.post("/-/candidate/promote")[0] == 400
    assert metric(one.keyfence, "keyfence_candidate_violations_total", **labels, change="new") == 6


def test_a_promotion_that_is_refused_leaves_a_changed_file_to_reload_auto(
    stage: Callable[..., Stage],
) -> None:
    one = stage("reload: auto", "modes: [{mode: enforce}]")
    one.load()
    assert one.send("web", ORDER) == [b"-NOPERM"]
    one.policy.write_text(NEW + "# not the candidate\n")
    status, refused = one.post("/-/candidate/promote")
    assert (status, "write the candidate" in refused["error"]) == (400, True)
    eventually(lambda: one.send("web", ORDER) == [b"+OK\r\n"], "the changed file is in force")


@WORKERS
def test_a_reload_keeps_the_candidate_and_begins_the_comparison_again_with_another_policy(
    more: tuple[str, ...], stage: Callable[..., Stage]
) -> None:
    one = stage(*more)
    loaded = one.load()
    one.send("web", NOTE, NOTE)
    assert one.post("/-/reload")[0] == 200
    one.send("web", NOTE)
    assert one.rows() == {("new", "web", "scope.write", "SET", "note"): 3}
    assert one.show()["candidate"] == loaded
    one.policy.write_text(NEW + "# as it will be\n")
    assert one.post("/-/reload")[0] == 200
    shown = one.show()
    assert shown["candidate"]["revision"] == loaded["revision"]
    assert shown["candidate"]["since"] > loaded["since"]
    assert (shown["commands"], shown["rows"]) == ({"web": 0, "billing": 0}, [])
    one.send("web", NOTE)
    assert one.rows() == {("same", "web", "scope.write", "SET", "note"): 1}
    assert metric(one.keyfence, "keyfence_candidate_violations_total", change="new") == 3


def test_modes_of_a_reload_hold_for_the_candidate_too(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.load()
    one.send("web", NOTE)
    one.config.write_text(one.config.read_text() + "modes: [{mode: enforce}]\n")
    assert one.post("/-/reload")[0] == 200
    assert one.send("web", NOTE) == [b"+OK\r\n"]
    (row,) = one.show()["rows"]
    assert row["actions"] == {"observed": 1, "refused": 1}


@WORKERS
def test_a_dropped_candidate_is_gone_at_once(more: tuple[str, ...], stage: Callable[..., Stage]) -> None:
    one = stage(*more)
    loaded = one.load()
    one.send("web", NOTE)
    status, answer = ask(one.keyfence, "/-/candidate", method="DELETE")
    assert (status, json.loads(answer)) == (200, {"dropped": loaded})
    one.send("web", NOTE)
    assert one.show()["candidate"] is None
    assert metric(one.keyfence, "keyfence_candidate_commands_total", service="web") == 1
    one.load()
    assert one.show()["rows"] == []
    assert json.loads(ask(one.keyfence, "/status")[1])["candidate"]["file"] == str(one.candidate)


@WORKERS
def test_a_faulty_candidate_changes_nothing_and_every_fault_is_reported(
    more: tuple[str, ...], stage: Callable[..., Stage]
) -> None:
    one = stage(*more)
    loaded = one.load()
    one.candidate.write_text(NEW.replace("[billing]", "[bill]").replace("type: hash", "type: hsah"))
    status, body = ask(one.keyfence, "/-/candidate", {"file": str(one.candidate)})
    answer = json.loads(body)
    assert status == 422
    assert len(answer["diagnostics"]) == 2
    assert all(line.startswith(f"{one.candidate}:") for line in answer["diagnostics"])
    assert answer["error"].startswith("no candidate was loaded: ")
    assert one.show()["candidate"] == loaded


def test_a_candidate_that_does_not_fit_the_configuration_is_faulty(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.candidate.write_text(POLICY.replace("billing", "invoices"))
    status, body = ask(one.keyfence, "/-/candidate", {"file": str(one.candidate)})
    assert status == 422
    assert json.loads(body)["diagnostics"] == [
        f"{one.config}:4:85: error: 'billing' is not a service of the policy; known: invoices, unknown, web"
    ]


def test_a_worker_that_starts_later_has_the_candidate(stage: Callable[..., Stage]) -> None:
    one = stage("workers: 2")
    one.load()
    one.send("web", NOTE)
    assert one.show()["commands"]["web"] == 1
    assert ask(one.keyfence, "/-/restart", {})[0] == 200
    one.send("web", NOTE)
    assert one.rows() == {("new", "web", "scope.write", "SET", "note"): 2}


@WORKERS
def test_keyfence_starts_with_a_candidate(
    more: tuple[str, ...], stage: Callable[..., Stage], tmp_path: Path
) -> None:
    one = stage(*more, flags=("--candidate", str(tmp_path / "new.yaml")))
    one.send("billing", CART, CART)
    shown = one.show()
    assert shown["candidate"]["file"] == str(one.candidate)
    assert shown["commands"] == {"web": 0, "billing": 2}


def test_a_faulty_candidate_fails_the_start_with_the_faults_of_both_policies(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(POLICY.replace("type: hash", "type: hsah"))
    new.write_text(NEW.replace("[billing]", "[bill]"))
    code, _, err = command_line("run", "--policy", old, "--candidate", new)
    assert code == 2
    assert [line.partition(":")[0] for line in err.splitlines()] == [str(new), str(old)]
    assert command_line("run", "--splice", "--candidate", new) == (
        2,
        "",
        "keyfence: --splice applies no policy; omit --candidate\n",
    )


def test_without_a_policy_there_is_nothing_to_compare_with(
    start_keyfence: Start, server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "new.yaml").write_text(NEW)
    keyfence = start_keyfence(
        "--splice", "--upstream", server.url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    )
    refused = (400, {"error": "keyfence runs with --splice: it applies no policy"})
    for path, body in (("/candidate", None), ("/-/candidate", {"file": str(tmp_path / "new.yaml")})):
        status, answer = ask(keyfence, path, body)
        assert (status, json.loads(answer)) == refused


CROSSING = ("DEL", "shop:cart:1", "shop:note:1")
SHARING = ("DEL", "shop:cart:1", "shop:cart:1")


def rehearse(one: Stage) -> tuple[int, Any]:
    status, body = ask(one.keyfence, "/-/candidate", {"for": "cluster"})
    return status, json.loads(body)


def standing(one: Stage) -> Any:
    return json.loads(ask(one.keyfence, "/rehearsal")[1])


@WORKERS
def test_a_cluster_is_rehearsed_with_the_policy_in_force(
    more: tuple[str, ...], stage: Callable[..., Stage]
) -> None:
    one = stage("modes: [{rule: slot.cross, mode: disabled}]", *more)
    assert (standing(one)["rehearsal"], standing(one)["rows"]) == (None, [])
    status, begun = rehearse(one)
    assert (status, begun["for"], begun["revision"]) == (200, "cluster", one.show()["in_force"])
    for _ in range(3):
        assert one.send("web", CROSSING, SHARING, CART) == [b":0\r\n", b":0\r\n", b"$-1\r\n"]
    found = standing(one)
    assert [(row["service"], row["readiness"], row["commands"]) for row in found["services"]] == [
        ("billing", "no traffic", 0),
        ("web", "not ready", 9),
    ]
    (row,) = found["rows"]
    assert (row["obstacle"], row["times"], row["works"]) == ("slots.command", 3, 3)
    assert row["change"] == "write shop:cart:{<id>} and shop:note:{<id>}"

    # Another policy in force is rehearsed from the beginning.
    one.policy.write_text(NEW)
    assert one.post("/-/reload")[0] == 200
    assert one.show()["candidate"]["revision"] == one.show()["in_force"]
    assert standing(one)["rows"] == []


def test_a_rehearsal_and_another_candidate_exclude_each_other(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.load()
    status, answer = rehearse(one)
    assert (status, answer["error"].partition(";")[0]) == (400, f"the candidate {one.candidate} is compared")
    ask(one.keyfence, "/-/candidate", method="DELETE")
    one.policy.write_text(NEW)
    status, answer = rehearse(one)
    assert status == 400
    assert answer["error"].endswith("run keyfence reload first")
    one.policy.write_text(POLICY)
    assert rehearse(one)[0] == 200
    status, body = ask(one.keyfence, "/-/candidate", {"file": str(one.candidate)})
    assert (status, "keyfence candidate drop" in body) == (400, True)
    status, answer = one.post("/-/candidate/promote")
    assert (status, "write cluster: true into the policy" in answer["error"]) == (400, True)


def test_the_start_with_a_rehearsal_and_its_wrong_uses(stage: Callable[..., Stage], tmp_path: Path) -> None:
    one = stage("workers: 2", flags=("--rehearse", "cluster"))
    one.send("web", CROSSING)
    assert standing(one)["rows"][0]["times"] == 1
    wrong = {
        ("--splice", "--rehearse", "cluster"): "--splice applies no policy; omit --rehearse",
        ("--policy", one.policy, "--candidate", one.candidate, "--rehearse", "cluster"): (
            "a rehearsal takes the candidate's place; omit --candidate or --rehearse"
        ),
    }
    for words, told in wrong.items():
        assert command_line("run", *words) == (2, "", f"keyfence: {told}\n")
    nodes = "{cluster: ['127.0.0.1:7000'], announce: {host: 127.0.0.1, ports: 20000-20099}}"
    listeners = "[{listen: '127.0.0.1:0', service: web}]"
    config = tmp_path / "nodes.yaml"
    config.write_text(f"policy: policy.yaml\nupstream: {nodes}\nlisteners: {listeners}\n")
    told = "keyfence: keyfence stands before a cluster already; omit --rehearse\n"
    assert command_line("run", "--config", config, "--rehearse", "cluster") == (2, "", told)


@WORKERS
def test_candidates_that_come_and_go_under_load_disturb_no_client(
    more: tuple[str, ...], stage: Callable[..., Stage]
) -> None:
    one = stage("modes: [{mode: enforce}]", *more)
    stop = threading.Event()
    faults: list[object] = []
    answered = 0

    def work(service: str) -> None:
        nonlocal answered
        with one.keyfence.connect(service) as connection:
            while not stop.is_set():
                for command, reply in ((NOTE, b"+OK\r\n"), (ORDER, b"-NOPERM"), (CART, b"$-1\r\n")):
                    connection.sendall(encode.command(*command))
                    answer = connection.recv(1000)[:7]
                    if answer != reply:
                        faults.append(answer)
                    answered += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in ("web", "billing")]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            one.load()
            goal = answered + 50
            eventually(lambda goal=goal: answered > goal, "they go on")
            assert one.show()["commands"]["web"] > 0
            assert ask(one.keyfence, "/-/candidate", method="DELETE")[0] == 200
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert faults == []
    counted = metric(one.keyfence, "keyfence_candidate_commands_total")
    assert 0 < counted <= metric(one.keyfence, "keyfence_commands_total")


# -- the command line


def test_the_commands_load_show_promote_and_drop(stage: Callable[..., Stage]) -> None:
    one = stage("modes: [{mode: enforce, rule: scope.write}]")
    admin = ("--admin", one.keyfence.ready.admin)
    shown = command_line("candidate", "show", *admin)
    assert shown == (0, "no candidate is loaded; load one with keyfence candidate load FILE\n", "")
    code, out, _ = command_line("candidate", "load", os.path.relpath(one.candidate), *admin)
    revision = one.show()["candidate"]["revision"]
    name = f"policy shop, revision {revision}"
    assert (code, out) == (0, f"loaded: {one.candidate}: {name}; it is compared with the policy in force\n")
    code, out, _ = command_line("candidate", "show", *admin)
    assert out.splitlines()[3:] == [
        "commands    0 evaluated by both",
        "no traffic  billing, web",
        "",
        "nothing would change; same: 0 violations",
    ]
    one.send("web", NOTE, ORDER, ("SET", "shop:cart:1", "v"))
    code, out, _ = command_line("candidate", "show", *admin)
    lines = out.splitlines()
    assert lines[0] == f"candidate   {one.candidate}"
    assert lines[1].startswith(f"            shop, revision {revision}, since ")
    assert lines[3:7] == [
        "commands    3 evaluated by both (web 3)",
        "no traffic  billing",
        "",
        "new: only the candidate finds these",
    ]
    assert "scope.write" in out
    assert "gone: only the policy in force finds these" in lines
    assert lines[-1] == "same: 1 violation"
    code, out, _ = command_line("candidate", "show", "--format", "json", *admin)
    assert json.loads(out) == one.show()
    status = command_line("status", *admin).out
    assert f"candidate   shop, revision {revision}, since " in status

    code, _, err = command_line("candidate", "promote", *admin)
    assert code == 1
    assert f"write the candidate ({one.candidate}) to {one.policy} first" in err
    one.policy.write_text(NEW)
    promoted = command_line("candidate", "promote", *admin)
    assert promoted == (0, f"promoted: {name}; changed: policy\n", "")
    assert command_line("candidate", "drop", *admin) == (0, "no candidate was loaded\n", "")
    command_line("candidate", "load", one.candidate, *admin)
    assert command_line("candidate", "drop", *admin) == (0, f"dropped: {one.candidate}\n", "")


def test_the_command_reports_every_fault_of_a_candidate(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.candidate.write_text(NEW.replace("[billing]", "[bill]").replace("type: hash", "type: hsah"))
    code, out, err = command_line("candidate", "load", one.candidate, "--admin", one.keyfence.ready.admin)
    assert (code, out) == (1, "")
    assert len([line for line in err.splitlines() if line.startswith(f"{one.candidate}:")]) == 2
