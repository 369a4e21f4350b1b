"""A reload of policy, configuration and waivers while clients are served takes everything, or nothing."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.policy.diagnostics import FileError
from keyfence.policy.source.files import read_file
from keyfence.process.serving.reload import LIVE, Origin, admit, read_once
from keyfence.resp import encode
from tests.clients.running import ask, configure, eventually, metric
from tests.servers import (
    PATIENCE_SECONDS,
    PROJECT,
    Certificates,
    Keyfence,
    RedisServer,
    issue_certificate,
    running_redis,
)

Start = Callable[..., Keyfence]
POLICY = """
policy: {name}
claims: ["a:"]
services: [CubeMaster, CubeProxy, cube-proxy-sidecar]
placeholders: {{word: "[a-z]+"}}
scopes: {{s: {{prefix: "a:", writers: [{writer}]}}}}
keys: {{words: {{key: "a:<word>", type: string}}}}
"""
SET = encode.command("SET", "a:k", "v")
LATER = encode.command("SET", "a:later", "v")
WORKERS = pytest.mark.parametrize("more", [(), ("workers: 2",)], ids=["alone", "workers"])


# -- as values


def test_what_is_loaded_comes_from_one_state_of_the_files(tmp_path: Path) -> None:
    """The files change after the first of them was read, so all are read again."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("1")
    begun = 0

    def make() -> str:
        nonlocal begun
        begun += 1
        found = read_file(tmp_path / "a.yaml")
        if begun == 1:
            for name in ("a", "b"):
                (tmp_path / f"{name}.yaml").write_text("2")
        return (found + read_file(tmp_path / "b.yaml") + read_file(tmp_path / "a.yaml")).decode()

    made, seen = read_once(make)
    assert (made, begun) == ("222", 2)
    assert {file for file, _ in seen.files} == {str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")}


def test_files_that_never_rest_are_not_loaded(tmp_path: Path) -> None:
    count = itertools.count()

    def make() -> bytes:
        found = b"" if not (file := tmp_path / "a.yaml").exists() else read_file(file)
        file.write_text(str(next(count)))
        return found + read_file(tmp_path / "b.yaml") if found else read_file(file)

    (tmp_path / "a.yaml").write_text("first")
    (tmp_path / "b.yaml").write_text("b")
    with pytest.raises(FileError, match="its files change while they are read"):
        read_once(make)


SIX_FAULTS = """policy: p
services: [a, a]
nonsense: 1
scopes: {s: {prefix: "x:", writers: [b]}}
keys: {k: {key: "x:<id>", type: hsh}}
"""


def lines_of(origin: Origin) -> list[str]:
    with pytest.raises(FileError) as caught:
        read_once(origin.load)
    return [f"{Path(one.place.file).name}:{one.place.line}" for one in caught.value.diagnostics]


def test_faults_of_every_stage_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(SIX_FAULTS)
    lines = [f"policy.yaml:{number}" for number in (2, 3, 4, 5, 5)]
    assert lines_of(Origin("", Overrides(policy=str(path)))) == lines


def test_a_faulty_configuration_hides_neither_policy_nor_waivers(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(SIX_FAULTS)
    (tmp_path / "waivers.yaml").write_text("waivers: [{service: a}]\n")
    config = tmp_path / "keyfence.yaml"
    config.write_text("policy: policy.yaml\nwaivers: waivers.yaml\nlisteners: [{listen: here}]\n")
    told = lines_of(Origin(str(config)))
    assert told[0] == "keyfence.yaml:3"
    assert {line.partition(":")[0] for line in told} == {"keyfence.yaml", "policy.yaml", "waivers.yaml"}
    assert len([line for line in told if line.startswith("policy")]) == 5
    config.write_text("policy: policy.yaml\nadmin: {token_file: none}\n")
    told = lines_of(Origin(str(config)))
    assert {line.partition(":")[0] for line in told} == {"keyfence.yaml", "policy.yaml"}


@pytest.mark.parametrize(("databases", "url"), [("[1]", "redis://h:1"), ("[0, 2]", "redis://h:1/1")])
def test_the_policy_must_admit_the_database_in_which_clients_begin(
    databases: str, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"policy: p\nservices: [a]\ndatabases: {databases}\n")
    with pytest.raises(FileError, match=r"clients begin in database [01], and the policy admits .* only"):
        Origin("", Overrides(policy=str(path), upstream=url)).load()
    path.write_text("policy: p\nservices: [a]\ndatabases: [0, 1]\n")
    Origin("", Overrides(policy=str(path), upstream=url)).load()


def test_settings_that_need_a_restart_stay_and_are_named(tmp_path: Path) -> None:
    path = tmp_path / "keyfence.yaml"

    def settings(text: str) -> Settings:
        path.write_text(f"policy: p\n{text}")
        return load_settings(str(path), Overrides())

    before, new = (
        settings("upstream: redis://a\ndrain: 1s"),
        settings("upstream: redis://b\ndrain: 2s\nworkers: 2"),
    )
    in_force, waiting = admit(before, new)
    assert waiting == ["upstream", "workers"]
    assert in_force.upstream is not None
    assert (in_force.upstream.host, in_force.workers, in_force.drain) == ("a", 0, 2.0)


def test_every_live_setting_is_a_setting() -> None:
    settings = load_settings("", Overrides(policy="p"))
    assert {field.name for field in dataclasses.fields(settings)} >= LIVE


# -- in a running keyfence


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


class Stage:
    """A keyfence in enforce whose policy names one writer."""

    def __init__(
        self, folder: Path, server: RedisServer, start: Start, *more: str, listeners: str = ""
    ) -> None:
        """`listeners`: lines of further ones."""
        server.clear()
        self.policy = folder / "policy.yaml"
        self.allow("CubeMaster")
        self.config = configure(folder, server.url, *more, mode="enforce")
        config = re.sub("policy: .*", f"policy: {self.policy}", self.config.read_text(), count=1)
        self.write(config.replace("listeners:\n", f"listeners:\n{listeners}"))
        self.keyfence = start("--config", self.config)

    def write(self, config: str) -> None:
        self.config.write_text(config)

    def allow(self, writer: str, name: str = "reloaded") -> None:
        self.policy.write_text(POLICY.format(name=name, writer=writer))

    def reload(self) -> tuple[int, dict[str, object]]:
        status, body = ask(self.keyfence, "/-/reload", {})
        return status, json.loads(body)

    def answers(self, service: str, command: bytes = SET) -> set[bytes]:
        """The replies to several new clients; with several workers, all of them are asked."""
        found = set()
        for _ in range(10):
            with self.keyfence.connect(service) as connection:
                connection.sendall(command)
                found.add(connection.recv(1000)[:7])
        return found

    def revisions(self) -> set[str]:
        return {json.dumps(one["revisions"]) for one in json.loads(ask(self.keyfence, "/workers")[1])}


@pytest.fixture
def stage(tmp_path: Path, server: RedisServer, start_keyfence: Start) -> Callable[..., Stage]:
    return functools.partial(Stage, tmp_path, server, start_keyfence)


@WORKERS
def test_a_new_policy_is_in_force_everywhere_once_the_reload_is_acknowledged(
    more: tuple[str, ...], stage: Callable[..., Stage]
) -> None:
    one = stage(*more)
    with one.keyfence.connect("CubeProxy") as connected:
        connected.sendall(SET)
        assert connected.recv(1000).startswith(b"-NOPERM")
        one.allow("CubeProxy")
        status, told = one.reload()
        assert (status, told["policy"], told["needs_restart"]) == (200, "reloaded", [])
        assert told["changed"] == ["policy"]
        assert one.reload()[1]["changed"] == []
        connected.sendall(SET)
        assert connected.recv(1000) == b"+OK\r\n"
    assert one.answers("CubeProxy") == {b"+OK\r\n"}
    assert one.answers("CubeMaster") == {b"-NOPERM"}
    assert one.revisions() == {json.dumps({"reloaded": told["revision"]})}
    assert metric(one.keyfence, "keyfence_policy_info", revision=str(told["revision"])) == 1


@WORKERS
def test_a_broken_policy_changes_nothing(more: tuple[str, ...], stage: Callable[..., Stage]) -> None:
    one = stage(*more)
    before = one.revisions()
    one.policy.write_text(one.policy.read_text() + "nonsense: 1\nmore: 2\n")
    status, told = one.reload()
    assert status == 422
    lines = told["diagnostics"]
    assert isinstance(lines, list)
    assert [line.partition(": error: ")[2][:11] for line in lines] == ["unknown key", "unknown key"]
    assert one.answers("CubeMaster") == {b"+OK\r\n"}
    assert one.revisions() == before
    assert metric(one.keyfence, "keyfence_policy_load_failures_total", policy="reloaded") == 1
    one.keyfence.expect_stderr = "unknown key 'nonsense'(.|\n)*nothing was reloaded"


def test_a_broken_configuration_changes_nothing(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.allow("CubeProxy")
    one.write(one.config.read_text().replace("enforce", "enfroce"))
    status, told = one.reload()
    assert (status, "enfroce" in str(told["error"])) == (422, True)
    assert one.answers("CubeProxy") == {b"-NOPERM"}
    one.keyfence.expect_stderr = "nothing was reloaded"


@WORKERS
def test_modes_waivers_and_the_log_are_reloaded_too(
    more: tuple[str, ...], stage: Callable[..., Stage], tmp_path: Path
) -> None:
    one = stage(*more)
    assert one.answers("CubeProxy") == {b"-NOPERM"}
    (tmp_path / "waivers.yaml").write_text(
        "waivers: [{service: CubeProxy, rule: scope.write, owner: me, reason: later, until: 2999-01-01}]\n"
    )
    config = one.config.read_text().replace("decisions.jsonl", "others.jsonl")
    one.write(config + "waivers: waivers.yaml\n")
    status, told = one.reload()
    assert (status, told["changed"]) == (200, ["waivers", "decision_log"])
    assert one.answers("CubeProxy") == {b"+OK\r\n"}
    others = tmp_path / "others.jsonl"
    eventually(lambda: '"action":"waived"' in others.read_text(), "the new log tells of it")
    one.write(config.replace("enforce", "observe").replace("decision_log", "# decision_log"))
    assert one.reload()[0] == 200
    size = others.stat().st_size
    assert one.answers("CubeProxy") == {b"+OK\r\n"}
    assert others.stat().st_size == size, "there is no log any more"


def test_settings_that_need_a_restart_are_reported(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.write(one.config.read_text() + "workers: 2\n")
    assert one.reload()[1]["needs_restart"] == ["workers"]
    one.keyfence.expect_stderr = "workers has changed in the configuration: that needs a restart"


@WORKERS
def test_a_log_that_cannot_be_written_changes_nothing_and_names_the_file(
    more: tuple[str, ...], stage: Callable[..., Stage], tmp_path: Path
) -> None:
    one = stage(*more)
    one.allow("CubeProxy")
    one.write(one.config.read_text().replace("decisions.jsonl", "none/decisions.jsonl"))
    status, told = one.reload()
    why = f"the decision log {tmp_path}/none/decisions.jsonl cannot be written: No such file or directory"
    assert (status, told["diagnostics"]) == (422, [f"{one.config}:1:1: error: {why}; name another one"])
    assert one.answers("CubeProxy") == {b"-NOPERM"}
    one.keyfence.expect_stderr = "nothing was reloaded"


@WORKERS
@pytest.mark.parametrize("is_back", [False, True], ids=["gone", "back"])
def test_a_listener_that_stays_needs_its_certificate(
    more: tuple[str, ...], is_back: bool, stage: Callable[..., Stage], certificates: Certificates
) -> None:
    """With the certificate gone, each worker would end at the reload, and none could take its place."""
    mine = issue_certificate(certificates.ca, "kept", "/CN=kept")
    tls = f'  - {{listen: "127.0.0.1:0", tls: {{cert: {mine.certificate}, key: {mine.key}}}}}\n'
    one = stage(*more, listeners=tls)
    one.allow("CubeProxy")
    one.write(one.config.read_text().replace(tls, ""))
    text = mine.certificate.read_text()
    mine.certificate.unlink()
    with one.keyfence.connect("CubeProxy") as connected:
        status, told = one.reload()
        assert status == 422
        assert f"{mine.certificate} cannot be read: no such file or directory; keyfence needs it" in str(told)
        if is_back:
            mine.certificate.write_text(text)
            status, told = one.reload()
            assert (status, told["needs_restart"]) == (200, ["listeners"])
        connected.sendall(SET)
        assert connected.recv(1000)[:7] == (b"+OK\r\n" if is_back else b"-NOPERM"), "nothing is half done"
    assert one.answers("CubeProxy") == ({b"+OK\r\n"} if is_back else {b"-NOPERM"})
    one.keyfence.expect_stderr = "put it back, or restart keyfence\n(.|\n)*nothing was reloaded"


@WORKERS
def test_a_connected_client_logs_in_as_the_new_configuration_says(
    more: tuple[str, ...], stage: Callable[..., Stage]
) -> None:
    def identify(password: str, service: str) -> str:
        digest = hashlib.sha256(password.encode()).hexdigest()
        return f"identify: {{passwords: {{ann: {{sha256: {digest}, service: {service}}}}}}}"

    before, after = identify("old", "CubeMaster"), identify("new", "CubeProxy")
    one = stage(before, *more)
    with one.keyfence.connect("cube-proxy-sidecar") as connected:

        def answer(*words: str) -> bytes:
            connected.sendall(encode.command(*words))
            return connected.recv(1000)[:7]

        assert (answer("AUTH", "ann", "old"), answer("SET", "a:k", "v")) == (b"+OK\r\n", b"+OK\r\n")
        one.write(one.config.read_text().replace(before, after))
        one.allow("CubeProxy")
        assert one.reload()[0] == 200
        assert answer("SET", "a:k", "v") == b"-NOPERM", "it is what it was, until it logs in"
        assert answer("AUTH", "ann", "old") == b"-WRONGP"
        assert (answer("AUTH", "ann", "new"), answer("SET", "a:k", "v")) == (b"+OK\r\n", b"+OK\r\n")


def test_sighup_reloads(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.allow("CubeProxy")
    os.kill(one.keyfence.process.pid, signal.SIGHUP)
    one.keyfence.wait_for_line("keyfence: reloaded: policy reloaded, revision ")
    assert one.answers("CubeProxy") == {b"+OK\r\n"}


@WORKERS
def test_sighup_opens_the_log_again(
    more: tuple[str, ...], stage: Callable[..., Stage], tmp_path: Path
) -> None:
    one = stage(*more)
    log = tmp_path / "decisions.jsonl"
    log.rename(tmp_path / "decisions.1")
    os.kill(one.keyfence.process.pid, signal.SIGHUP)
    eventually(log.exists, "there is a new one")
    assert one.answers("CubeProxy") == {b"-NOPERM"}
    eventually(lambda: "scope.write" in log.read_text(), "it is written to")
    one.keyfence.wait_for_line("keyfence: reloaded: ")


@pytest.mark.parametrize("service", ["CubeMaster", "CubeProxy"])
def test_a_transaction_keeps_the_policy_that_it_began_with(service: str, stage: Callable[..., Stage]) -> None:
    """CubeMaster may write before the reload and CubeProxy after it."""
    one = stage("workers: 1")
    with one.keyfence.connect(service) as connection:
        connection.sendall(encode.command("MULTI"))
        assert connection.recv(100) == b"+OK\r\n"
        one.allow("CubeProxy")
        assert one.reload()[0] == 200
        connection.sendall(SET)
        may = service == "CubeMaster"
        assert connection.recv(1000).startswith(b"+QUEUED" if may else b"-NOPERM")
        connection.sendall(encode.command("EXEC"))
        assert connection.recv(1000).startswith(b"*1\r\n+OK" if may else b"-EXECABORT")
        connection.sendall(LATER)
        assert connection.recv(1000).startswith(b"-NOPERM" if may else b"+OK")


@WORKERS
def test_reloads_under_load_disturb_no_client(more: tuple[str, ...], stage: Callable[..., Stage]) -> None:
    one = stage(*more)
    stop = threading.Event()
    faults: list[object] = []
    answered = 0

    def work(service: str) -> None:
        nonlocal answered
        with one.keyfence.connect(service) as connection:
            while not stop.is_set():
                connection.sendall(SET)
                answer = connection.recv(1000)
                if answer != b"+OK\r\n" and not answer.startswith(b"-NOPERM"):
                    faults.append(answer)
                answered += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in ("CubeMaster", "CubeProxy") * 2]
    for thread in threads:
        thread.start()
    try:
        for writer in ("CubeProxy", "CubeMaster", "CubeProxy"):
            one.allow(writer)
            goal = answered + 20
            assert one.reload()[0] == 200
            eventually(lambda goal=goal: answered > goal, "they go on")
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert faults == []
    assert one.answers("CubeProxy") == {b"+OK\r\n"}


def test_the_command_reloads_and_reports_faults(stage: Callable[..., Stage]) -> None:
    one = stage()

    def reload() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "keyfence", "reload", "--admin", one.keyfence.ready.admin],
            cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_SECONDS * 2, check=False,
        )  # fmt: skip

    one.allow("CubeProxy", name="other")
    told = reload()
    assert (told.returncode, told.stdout[:33], told.stderr) == (0, "reloaded: policy other, revision ", "")
    one.policy.write_text("policy: [")
    told = reload()
    assert (told.returncode, told.stdout) == (1, "")
    assert "error: not YAML" in told.stderr
    one.keyfence.expect_stderr = "nothing was reloaded"
    assert metric(one.keyfence, "keyfence_policy_load_failures_total", policy="other") == 1
