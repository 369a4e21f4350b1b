"""A company's traffic, recorded by keyfence in front of a real Redis, becomes a policy that can be used
unread."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.exceptions import ResponseError

from keyfence.authoring.learn.seen import Evidence
from keyfence.authoring.lint import check_policy
from keyfence.authoring.replay import verdict_on
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.validate import validate
from keyfence.policy.source.yaml import read_source
from tests.authoring.learn.company import KINDS, SERVICES, TENANTS, Company
from tests.cli.test_main import keyfence
from tests.servers import Keyfence, RedisServer, running_redis, server_binaries

MOST_ENTRIES = 1.3  # for each kind of key
AT_ONCE = 200  # commands
# The planted mistakes, as the draft's replay may show them: rule, service and command.
MISTAKES = {
    ("key.unregistered", "pricing", "SET"),  # bh: for hb:
    ("key.unregistered", "dispatch", "HSET"),  # vehicel for vehicle
    ("key.unregistered", "booking", "HSET"),  # HB: for hb:
    ("key.unregistered", "booking", "ZADD"),  # hb:acme: for hb:{acme}:
    ("type.mismatch", "reports", "GET"),  # of a hash
    ("scope.read", "reports", "GET"),
    ("command.forbidden", "reports", "KEYS"),
    ("scan.scope", "reports", "KEYS"),
}


class Drafted(NamedTuple):
    """What keyfence made of the company's traffic."""

    company: Company
    folder: Path
    log: Path
    err: str

    @property
    def text(self) -> str:
        return (self.folder / "hb.yaml").read_text()

    @property
    def model(self) -> PolicyModel:
        return validate(PolicyModel, read_source(self.folder / "hb.yaml"))


@pytest.fixture(scope="module", params=[2, 12], ids=["2 tenants", "12 tenants"])
def drafted(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Drafted:
    place = tmp_path_factory.mktemp("company")
    company = Company(request.param)
    with running_redis(server_binaries()[0]) as redis:
        recorded(company, redis, place)
    code, _, err = keyfence("draft", place / "commands.log", "--name", "hb", "-o", f"{place}/hb/")
    assert code == 0
    return Drafted(company, place / "hb", place / "commands.log", err)


def recorded(company: Company, redis: RedisServer, place: Path) -> None:
    """Sends the company's commands through a keyfence that records."""
    (place / "look.yaml").write_text(f"policy: look\nservices: [{', '.join(SERVICES)}]\n")
    listeners = "".join(f'  - {{listen: "127.0.0.1:0", service: {name}}}\n' for name in SERVICES)
    (place / "keyfence.yaml").write_text(
        f"policy: look.yaml\nupstream: {redis.url}\nadmin: none\nfindings: none\nlisteners:\n{listeners}"
    )
    log = place / "commands.log"
    commands = list(company.commands())
    with Keyfence("--config", str(place / "keyfence.yaml"), "--record", str(log)) as running:
        for service in SERVICES:
            with running.client(service, protocol=2) as client:
                connection = client.connection_pool.get_connection()
                mine = [argv for who, argv in commands if who == service]
                talk = [argv for argv in mine if argv[0] != b"SUBSCRIBE"]
                for start in range(0, len(talk), AT_ONCE):
                    exchange(connection, talk[start : start + AT_ONCE])
                for argv in mine:
                    if argv[0] == b"SUBSCRIBE":
                        exchange(connection, [argv])


def exchange(connection: Any, commands: list[list[bytes]]) -> None:
    """Sends commands, and reads their replies. Some of them are errors."""
    connection.send_packed_command(connection.pack_commands(commands))
    for _ in commands:
        with contextlib.suppress(ResponseError):
            connection.read_response()


def test_it_passes_check_without_warnings(drafted: Drafted) -> None:
    errors, warnings, _ = check_policy(drafted.folder)
    assert ([str(one) for one in errors], [str(one) for one in warnings]) == ([], [])


def test_it_has_few_entries_for_each_kind_however_many_tenants_there_are(drafted: Drafted) -> None:
    assert len(drafted.model.keys) <= MOST_ENTRIES * len(KINDS)
    generic = {re.sub("(truck_|sk_live_)?<[^>]*>", "<>", entry.key) for entry in drafted.model.keys.values()}
    assert {re.sub("<[^>]*>", "<>", kind) for kind in KINDS} <= generic
    assert not any(tenant in entry.key for entry in drafted.model.keys.values() for tenant in TENANTS)


def test_no_claim_and_no_scope_comes_from_a_typo_and_the_typo_is_named(drafted: Drafted) -> None:
    model = drafted.model
    prefixes = {scope.prefix for scope in model.scopes.values()}
    assert (model.claims, prefixes) == (["hb:"], {"hb:", "hb:{<tag>}:"})
    assert "vehicel" not in " ".join(entry.key for entry in model.keys.values())
    for text in (drafted.text.replace("\n#   ", " "), drafted.err):
        assert "Keys with bh: are left out: it is rare and one edit from hb:, so it looks like a typo" in text
        assert "Keys with HB: are left out: it is rare and differs from hb: only in case or braces" in text
        braces = "hb:<…>:bookings:<…> are left out: it is rare and differs from hb:{<…>}:bookings:<…> only in"
        assert braces in text


def test_no_secret_stands_in_it(drafted: Drafted) -> None:
    texts = [drafted.err, *(path.read_text() for path in drafted.folder.iterdir())]
    assert len(drafted.company.secrets) > 60
    assert [one for one in drafted.company.secrets for text in texts if one in text or one[:12] in text] == []


def test_a_command_that_is_forbidden_is_not_granted(drafted: Drafted) -> None:
    assert not any("KEYS" in grant.commands for grant in drafted.model.grants.values())
    assert "command.forbidden: reports KEYS hb:*" in drafted.err


def test_each_tenant_may_scan_its_keys_without_a_grant(drafted: Drafted) -> None:
    assert drafted.model.grants == {}
    for tenant in ("acme", "newcomer"):
        code, out, _ = explained(drafted, "booking", "SCAN", "0", "MATCH", f"hb:{{{tenant}}}:booking:*")
        assert (code, "allow" in out) == (0, True)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("vehicel:truck_101", "vehicle-truck"), ("bokking:12", "booking"), ("qoute:1", "quote")],
)
def test_the_nearest_entry_of_a_tenants_key_that_is_none_is_named(
    drafted: Drafted, key: str, nearest: str
) -> None:
    code, out, _ = explained(drafted, "dispatch", "HSET", f"hb:{{acme}}:{key}", "plate", "x")
    assert (code, "key.unregistered" in out, "scope.write" in out) == (1, True, False)
    assert f"the nearest entry is {nearest}: hb:{{<tag>}}:{key.partition(':')[0][:1]}" in out


def explained(drafted: Drafted, service: str, *command: str) -> tuple[int, str, str]:
    """Runs keyfence explain under the draft."""
    return keyfence("explain", "--policy", drafted.folder / "hb.yaml", "--service", service, "--", *command)


def test_a_command_on_another_type_says_nothing_of_the_type(drafted: Drafted) -> None:
    assert drafted.model.keys["booking"].type == ["hash"]
    assert "type.mismatch: reports GET booking" in drafted.err


def test_a_service_that_only_sends_commands_on_another_type_gets_no_right(drafted: Drafted) -> None:
    code, out, _ = explained(drafted, "reports", "HGETALL", "hb:{acme}:booking:1001")
    assert (code, "scope.read" in out) == (1, True)
    assert "reports gets no right on booking" in drafted.err


def test_old_names_stand_beside_those_that_replace_them(drafted: Drafted) -> None:
    legacy = {re.sub("<[^>]*>", "<>", text): one.entry for text, one in drafted.model.legacy.keys.items()}
    assert legacy == {"booking:<>": "booking", "sess:<>:<>": "session"}


def test_the_policies_of_applications_take_the_place_of_entries(drafted: Drafted) -> None:
    assert {path.name for path in drafted.folder.iterdir()} == {"hb.yaml", "bullmq.yaml", "celery.yaml"}
    assert "services: [media]" in (drafted.folder / "bullmq.yaml").read_text()
    assert "services: [booking, mailer, media]" in (drafted.folder / "celery.yaml").read_text()
    assert "are left to the shipped policy applications/celery" in drafted.err


def test_a_script_of_another_version_of_bullmq_is_reported_and_not_refused(drafted: Drafted) -> None:
    policy = load_policy(drafted.folder)
    argv = [b"EVALSHA", b"9" * 40, b"1", b"bull:thumbs:wait"]
    found = Evaluator(policy).decide(policy.number("media"), argv).violations
    assert [(one.rule, one.severity) for one in found] == [("script.unregistered", "should")]


def test_a_replay_shows_the_planted_mistakes_and_nothing_else(drafted: Drafted) -> None:
    evidence = Evidence()
    with drafted.log.open("rb") as lines:
        evidence.feed(lines, pytest.fail)
    evaluator = Evaluator(load_policy(drafted.folder))
    broken = {
        (violation.rule, one.service, one.command)
        for one in evidence.lines
        for violation in verdict_on(evaluator, one).violations
    }
    assert broken == MISTAKES
    by_another_rule = {("scan.scope", "reports", "KEYS"), ("scope.read", "reports", "GET")}
    for rule, service, command in MISTAKES - by_another_rule:
        assert f"refused by the draft: {rule}: {service} {command} " in drafted.err


def test_a_use_that_is_rare_is_named(drafted: Drafted) -> None:
    assert "mailer: HGETALL of session" in drafted.err


def test_an_extension_adds_nothing_to_it_and_leaves_applications_to_their_policies(drafted: Drafted) -> None:
    code, out, err = keyfence("draft", "--extend", drafted.folder / "hb.yaml", drafted.log)
    assert (code, out) == (0, "")
    assert "are left to the shipped policy applications/bullmq" in err


def test_words_that_look_mistyped_become_entries_if_somebody_says_so(
    drafted: Drafted, tmp_path: Path
) -> None:
    options = ("--interactive", "-o", tmp_path / "hb.yaml")
    code, _, err = keyfence("draft", drafted.log, *options, stdin="y\nn\nn\nn\n")
    assert code == 0
    assert "bh: looks like a typo of hb:" in err
    text = (tmp_path / "hb.yaml").read_text()
    assert 'claims: ["bh:", "hb:"]' in text
    assert not re.search("key: .*vehicel", text)
