"""`keyfence draft`: a policy proposed from logs, findings and running keyfences."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyfence.authoring.lint import check_policy
from keyfence.policy.loading.load import load_policy
from tests.authoring.learn.traffic import BLANK, commands_of
from tests.cli.test_main import keyfence, process
from tests.clients.running import eventually
from tests.servers import Keyfence, RedisServer

SERVICES = ("web", "stock")
BLANK_POLICY = "policy: look\nservices: [web, stock]\n"


def line(command: str, service: str = "web", when: str = "2026-03-02T10:00:00Z", count: int = 1) -> bytes:
    from keyfence.commands.extract import extract
    from keyfence.policy.wording.command_log import as_line

    argv = command.encode().split()
    return json.dumps({"time": when} | as_line(BLANK, service, argv, extract(argv), count)).encode() + b"\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "commands.log"
    lines = [line(f"HSET shop:cart:{number} items 3 colour red") for number in (17, 204, 3181)]
    lines += [line(f"EXPIRE shop:cart:{number} 3600", when="2026-03-04T10:00:00Z") for number in (17, 204)]
    lines += [line(f"HGETALL shop:cart:{number}", "stock") for number in (17, 204)]
    path.write_bytes(b"".join(lines))
    return path


def test_a_draft_has_entries_with_their_evidence(log: Path) -> None:
    code, out, err = keyfence("draft", log, "--name", "shop")
    assert code == 0
    assert "policy: shop\n" in out
    assert 'claims: ["shop:"]\n' in out
    assert re.search(r'^    key: "shop:cart:<cart>"', out, re.MULTILINE)
    assert re.search(
        r"^    ttl: \{default: 1h, max: 1h, at: refresh\} +# seen: 1h, 2 by EXPIRE", out, re.MULTILINE
    )
    assert re.search(r"^    fields: \{colour: any, items: integer\} +# 3 writes", out, re.MULTILINE)
    assert '{prefix: "shop:", writers: [web], readers: [stock]}' in out
    assert "# 7 commands on 3 keys, 2026-03-02 10:00 to 2026-03-04 10:00; for example shop:cart:17\n" in out
    assert "# stock: HGETALL 2; web: HSET 3, EXPIRE 2\n" in out
    assert "keyfence: 1 entry, 1 scope, 2 services, from 7 commands" in err
    assert "wider than what was seen: <cart> admits any number of up to 20 digits; seen: 3 values" in err


def test_a_draft_is_written_to_a_new_file_only(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "shop.yaml"
    assert keyfence("draft", log, "-o", target).code == 0
    assert load_policy(target).services[:2] == ("stock", "web")
    code, _, err = keyfence("draft", log, "-o", target)
    assert (code, "exists; name a new file" in err) == (2, True)


def test_less_than_a_day_is_said(tmp_path: Path) -> None:
    path = tmp_path / "short.log"
    path.write_bytes(line("GET a:1") + line("GET a:2", when="2026-03-02T10:30:00Z"))
    code, out, err = keyfence("draft", path)
    assert code == 0
    assert "cover only 30 minutes, less than a day" in err
    assert "cover only 30 minutes, less than a day" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the source is empty: no commands, no findings and no keys"),
        (line("PING"), "no command names a key or a channel (1 in all)"),
        (
            line("GET s:<masked>", count=7),
            "every key is masked (7 in all), so nothing can be learned from them",
        ),
    ],
)
def test_a_source_of_which_nothing_can_come_ends_with_exit_code_2(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert keyfence("draft", path) == (2, "", f"keyfence: {message}\n")


def test_masked_keys_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line("GET s:<masked>", count=7) + line("GET a:1"))
    code, out, err = keyfence("draft", path)
    assert code == 0
    assert "7 uses of masked, cut, empty or very long names left out" in err
    assert '"s:' not in out


def test_lines_that_cannot_be_read_are_reported_and_skipped(log: Path) -> None:
    log.write_bytes(log.read_bytes() + b'{"service": 1}\nno JSON\n')
    code, _, err = keyfence("draft", log)
    assert code == 0
    assert "line 8 is skipped" in err
    assert "line 9 is skipped" in err


def test_a_source_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    code, _, err = keyfence("draft", tmp_path / "nothing")
    assert (code, "No such file or directory" in err) == (2, True)


def test_an_address_without_a_scheme_may_have_meant_a_redis() -> None:
    code, _, err = keyfence("draft", "127.0.0.1:1")
    assert code == 1
    assert err.startswith("keyfence: http://127.0.0.1:1/report: no keyfence answers there (")
    assert err.endswith("; write redis://127.0.0.1:1 for the keys of a Redis\n")
    assert "redis://" not in keyfence("draft", "http://127.0.0.1:1").err


def test_clients_without_a_service_get_one_as_a_suggestion(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line("SET a:1 x", "unknown") + line("SET a:2 x", "unknown"))
    code, out, err = keyfence("draft", path)
    assert code == 0
    assert "services: [app]\n" in out
    assert "Clients that nothing identified stand here as app." in err


def test_what_the_draft_refuses_although_it_was_seen_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line("SET a:1 x") + line("KEYS a:*") + line("FLUSHALL"))
    code, out, err = keyfence("draft", path)
    assert code == 0
    assert "seen, and refused by the draft: command.forbidden: web KEYS" in err
    assert "# - command.forbidden: web FLUSHALL" in out


# -- through a real keyfence


@pytest.fixture
def recording(redis_server: RedisServer, tmp_path: Path) -> Iterator[Keyfence]:
    (tmp_path / "look.yaml").write_text(BLANK_POLICY)
    listeners = "".join(f'  - {{listen: "127.0.0.1:0", service: {name}}}\n' for name in SERVICES)
    (tmp_path / "keyfence.yaml").write_text(
        f"policy: look.yaml\nupstream: {redis_server.url}\nadmin: 127.0.0.1:0\nlisteners:\n{listeners}"
        f"findings: sqlite:///{tmp_path}/findings.db\ndecision_log: decisions.jsonl\n"
    )
    arguments = ["--config", str(tmp_path / "keyfence.yaml"), "--record", str(tmp_path / "commands.log")]
    with Keyfence(*arguments) as running:
        for number in (17, 204, 3181):
            web, stock = running.client("web"), running.client("stock")
            web.hset(f"shop:cart:{number}", "items", "3")
            web.expire(f"shop:cart:{number}", 3600)
            web.set(f"shop:session:9f86d081884c7d65{number:08}", "x", ex=600)
            stock.hgetall(f"shop:cart:{number}")
            web.close()
            stock.close()
        yield running


@pytest.mark.usefixtures("recording")
def test_a_draft_from_a_real_record_admits_what_was_recorded(tmp_path: Path) -> None:
    log = tmp_path / "commands.log"
    eventually(lambda: log.read_text().count("HGETALL") >= 3, "the last command is recorded")
    draft = tmp_path / "shop.yaml"
    code, _, err = keyfence("draft", log, "-o", draft)
    assert (code, "refused" in err) == (0, False)
    assert check_policy(draft)[:2] == ([], [])
    code, out, _ = keyfence("diff", tmp_path / "look.yaml", draft, "--replay", log, "--format", "json")
    assert code in (0, 1)
    assert [row for row in json.loads(out)["rows"] if row["what"] == "breaks"] == []
    assert re.search(r"ttl: \{default: 10m, max: 10m, at: write\}", draft.read_text())


@pytest.mark.parametrize("source", ["running", "store", "file of the store", "decision log"])
def test_findings_are_a_source(source: str, recording: Keyfence, tmp_path: Path) -> None:
    from_where: dict[str, str | Path] = {
        "running": recording.ready.admin,
        "store": f"sqlite:///{tmp_path}/findings.db",
        "file of the store": tmp_path / "findings.db",
        "decision log": tmp_path / "decisions.jsonl",
    }
    out = ""

    def drafted() -> bool:
        nonlocal out
        code, out, _ = keyfence("draft", from_where[source])
        return code == 0 and "cart:<" in out and "readers: [stock]" in out and "session:<" in out

    eventually(drafted, "the findings are there")
    file = tmp_path / "draft.yaml"
    file.write_text(out)
    assert check_policy(file)[:2] == ([], [])


@pytest.mark.parametrize("convention", ["cubesandbox", "container-registry"])
def test_a_convention_s_services_are_recorded_and_drafted(
    convention: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    commands = list(commands_of(convention, times=4))
    services = sorted({service for _, service, _ in commands})
    (tmp_path / "look.yaml").write_text(f"policy: look\nservices: [{', '.join(services)}]\n")
    listeners = "".join(f'  - {{listen: "127.0.0.1:0", service: {name}}}\n' for name in services)
    (tmp_path / "keyfence.yaml").write_text(
        f"policy: look.yaml\nupstream: {redis_server.url}\nadmin: none\nfindings: none\n"
        f"listeners:\n{listeners}"
    )
    log = tmp_path / "commands.log"
    with Keyfence("--config", str(tmp_path / "keyfence.yaml"), "--record", str(log)) as running:
        for _, service, argv in commands:
            with running.connect(service) as connection:
                exchange(connection, argv)
    draft = tmp_path / "draft.yaml"
    code, _, err = keyfence("draft", log, "-o", draft)
    assert (code, "refused" in err) == (0, False)
    assert check_policy(draft)[:2] == ([], [])
    code, out, _ = keyfence("diff", tmp_path / "look.yaml", draft, "--replay", log, "--format", "json")
    assert [row for row in json.loads(out)["rows"] if row["what"] == "breaks"] == []


def exchange(connection: socket.socket, argv: list[bytes]) -> None:
    """Sends a command, and waits for the beginning of its reply."""
    words = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in argv)
    connection.sendall(b"*%d\r\n%s" % (len(argv), words))
    assert connection.recv(65536)


# -- --extend


SHOP = """# The shop.
policy: shop
claims: ["shop:"]
services: [web, stock]
placeholders: {id: "[0-9]{1,8}"}
keys:
  cart: {key: "shop:cart:<id>", type: hash, writers: [web], readers: [stock]}   # what they buy
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP)
    return path


@pytest.fixture
def more(tmp_path: Path) -> Path:
    path = tmp_path / "more.log"
    path.write_bytes(
        line("SET shop:seen:1 x EX 60") + line("DEL shop:cart:1", "stock") + line("GET shop:old:7")
    )
    return path


def test_extend_prints_a_patch(shop: Path, more: Path) -> None:
    code, out, err = keyfence("draft", "--extend", shop, more)
    assert code == 0
    assert "3 of 3 proposals in the patch" in err
    assert "adds stock among the writers of cart: DEL 1" in err
    assert shop.read_text() == SHOP
    program = shutil.which("patch")
    if program is not None:
        subprocess.run([program, "-s", str(shop)], input=out.encode(), check=True)
        assert check_policy(shop)[:2] == ([], [])
        code, out, err = keyfence("draft", "--extend", shop, more)
        assert (code, out, "lacks nothing of what was seen" in err) == (0, "", True)


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_patch_has_the_line_ends_of_the_file(end: str, more: Path, tmp_path: Path) -> None:
    policy = tmp_path / "shop.yaml"
    policy.write_bytes(SHOP.replace("\n", end).encode())
    code, out, _ = process("draft", "--extend", str(policy), str(more))
    assert code == 0
    subprocess.run(["patch", "-s", str(policy)], input=out.encode(), check=True)
    assert policy.read_bytes().count(end.encode()) == policy.read_bytes().count(b"\n")
    assert keyfence("draft", "--extend", policy, more).out == ""


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
def test_the_patch_names_a_file_with_its_spaces(
    more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("the shop.yaml").write_text(SHOP)
    patch = keyfence("draft", "--extend", "the shop.yaml", more).out
    subprocess.run(["patch", "-s", "-p0"], input=patch.encode(), check=True)
    assert keyfence("draft", "--extend", "the shop.yaml", more).out == ""


def test_extend_leaves_the_keys_of_applications_to_their_policies(shop: Path, tmp_path: Path) -> None:
    log = tmp_path / "jobs.log"
    log.write_bytes(line("HGETALL bull:mail:meta") + line("XREAD STREAMS bull:mail:events 0"))
    code, out, err = keyfence("draft", "--extend", shop, log)
    assert (code, out) == (0, "")
    assert "2 keys of bullmq (bull:), with 2 commands by web, are left to the shipped policy" in err
    assert "keyfence policies applications/bullmq prints it" in err
    assert "lacks nothing" not in err


def test_interactive_asks_about_each_and_goes_on_later(shop: Path, more: Path) -> None:
    code, out, err = keyfence(
        "draft", "--extend", shop, more, "--interactive", stdin="l\nnothing\nl\ncart\nq\n"
    )
    assert code == 0
    assert "it does not work: nothing is not an entry of the policy" in err
    assert '"shop:old:<old>": cart' in out
    code, out, err = keyfence("draft", "--extend", shop, more, "--interactive", stdin="w\ns\n")
    assert code == 0
    assert "1/3" not in err  # it has an answer
    assert "1 of 3 proposals in the patch" in err
    assert (
        'for the waivers file: {service: web, rule: key.unregistered, keys: "shop:seen:*", owner: ""' in err
    )
    code, again, err = keyfence("draft", "--extend", shop, more, "--interactive")
    assert (code, bool(again), out.endswith(again)) == (0, True, True)


def test_interactive_edits_a_proposal(shop: Path, more: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.edit", lambda text, **_: text.replace("old:\n", "older:\n"))
    code, out, _ = keyfence("draft", "--extend", shop, more, "--interactive", stdin="e\nq\n")
    assert code == 0
    assert "+  older:" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--extend", "x.yaml", "-o", "y.yaml"], "--extend prints a patch; omit --output"),
    ],
)
def test_options_that_do_not_go_together_are_errors(arguments: list[str], message: str, log: Path) -> None:
    code, _, err = keyfence("draft", log, *arguments)
    assert (code, message in err) == (2, True)


def test_a_faulty_policy_cannot_be_extended(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text('policy: x\nkeys: {a: {key: "<b>"}}\n')
    code, _, err = keyfence("draft", "--extend", path, log)
    assert (code, "placeholder <b> is not declared" in err) == (2, True)


def test_the_keys_of_a_redis_are_a_source(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client:
        client.flushall()
        for number in range(20):
            client.hset(f"shop:order:{number}", mapping={"state": "new", "total": "3"})
            client.set(f"shop:cart:{number}", "x", ex=3000)
            client.set(f"shop:price:{number}", "x", ex=50 if number % 2 else None)
    file = tmp_path / "shop.yaml"
    code, _, err = keyfence("draft", redis_server.url, "--name", "shop", "-o", file)
    assert code == 0
    text = file.read_text()
    assert "keyfence: " + str(file) + ": 3 entries, 1 scope, 1 service, from 60 keys in Redis" in err
    assert "No command was seen on the keys of cart, order and price. They stand here as keys of app." in err
    assert "services: [app]" in text
    assert "  # 20 keys there now; for example shop:order:" in text
    assert re.search(r"ttl: none +# guess: 20 keys there now, and none expires", text)
    assert re.search(r"fields: \{state: any, total: any\} +# 20 hashes there now of 2 different fields", text)
    assert "# guess: of the keys there now, 10 expire within 1m, and 10 do not\n" in text
    assert "ttl: {max: 1h, at: refresh}" in text
    assert "ttl: {max: 1m, or_none: true}" in text
    errors, warnings, _ = check_policy(file)
    assert (errors, warnings) == ([], [])


def test_keys_complete_what_commands_show(log: Path, redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.flushall()
        for number in range(9):
            client.hset(f"shop:cart:{number}", "coupon", "x")
            client.rpush(f"shop:queue:{number}", "x")
    code, out, err = keyfence("draft", log, redis_server.url, "--name", "shop")
    assert code == 0
    assert "# seen: 1h, 2 by EXPIRE or the like, 9 keys there now that do not expire\n" in out
    assert "ttl: {or_none: true, default: 1h, max: 1h}\n" in out
    assert "fields: {colour: any, coupon: any, items: integer}" in out
    assert re.search(r"writers: \[web\]", out)
    assert "No command was seen on the keys of queue. They stand here as keys of unidentified." in err


def test_an_rdb_file_is_a_source(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client:
        client.flushall()
        client.mset({f"shop:cart:{number}": "x" for number in range(5)})
        client.save()
        folder = client.config_get("dir")["dir"]
        name = client.config_get("dbfilename")["dbfilename"]
    shutil.copy(Path(folder) / name, tmp_path / "dump.rdb")
    code, out, _ = keyfence("draft", tmp_path / "dump.rdb")
    assert code == 0
    assert 'key: "shop:cart:<cart>"' in out


def test_a_redis_without_keys_or_without_an_answer_is_no_source(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.flushall()
    code, _, err = keyfence("draft", redis_server.url)
    assert (code, "the source is empty" in err) == (2, True)
    code, _, err = keyfence("draft", "redis://127.0.0.1:1")
    assert (code, "redis://127.0.0.1:1 cannot be reached: " in err) == (2, True)


def test_what_an_audit_wrote_into_a_store_is_no_traffic(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client:
        client.flushall()
        client.set("shop:cart:1", "x")
    policy, store = tmp_path / "look.yaml", f"sqlite:///{tmp_path / 'findings.db'}"
    policy.write_text(BLANK_POLICY)
    assert keyfence("audit", redis_server.url, "--policy", policy, "--store", store)[0] == 1
    code, _, err = keyfence("draft", store)
    assert (code, "the source is empty" in err) == (2, True)
