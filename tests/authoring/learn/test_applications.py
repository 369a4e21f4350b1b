"""Applications are found by their keys, and their shipped policies take the place of entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.authoring.learn.applications import Application, applications_in, in_one_folder, with_services
from keyfence.authoring.learn.draft import draft
from keyfence.authoring.lint import check_policy
from keyfence.cli.terminal.policies import shipped_policies
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from tests.authoring.learn.company import ADD_JOB
from tests.authoring.learn.test_draft import evidence_of

APPLICATIONS = "applications/"
SHIPPED = {
    name.removeprefix(APPLICATIONS): path.read_text()
    for name, path in shipped_policies().items()
    if name.startswith(APPLICATIONS)
}
UUID = "20572aeb-7029-4815-9351-d2c1e8fb46b5"
BULLMQ = ("HGETALL bull:mail:meta", "XREAD STREAMS bull:mail:events 0", "ZCARD bull:mail:prioritized")
CELERY = ("LPUSH celery x", "SADD _kombu.binding.celery x", f"SETEX celery-task-meta-{UUID} 60 x")


def found(*commands: str) -> list[Application]:
    return applications_in(evidence_of(*commands), SHIPPED)


@pytest.mark.parametrize(
    ("commands", "name"),
    [
        (BULLMQ, "bullmq"),
        (CELERY, "celery"),
        (("HGETALL rq:job:1", "SADD rq:queues x", "SADD rq:workers x"), "rq"),
        ((f"SETEX :1:django.contrib.sessions.cache{'a' * 32} 60 x",), "django"),
    ],
)
def test_an_application_is_found_by_its_keys(commands: tuple[str, ...], name: str) -> None:
    (one,) = found(*commands, "SET shop:cart:1 x")
    assert (one.name, len(one.keys), one.services) == (name, len(commands), ("web",))


@pytest.mark.parametrize(
    "commands",
    [
        ["SET session:1 x"],  # flask's, and of many others
        ["SET lock:1 x EX 9"],
        ["LPUSH celery x"],
        [*BULLMQ, "SET bull x", "SET bull:a:b:c:d x", "HSET bull:mail:meta:x f 1", "SET bull:mail:events x"],
    ],
)
def test_keys_that_others_may_have_too_are_those_of_no_application(commands: list[str]) -> None:
    assert found(*commands) == []


def test_the_services_of_an_application_are_those_that_use_it() -> None:
    (one,) = found(*CELERY, "mailer> BRPOP celery 0")
    policy = parse_policy(one.text)
    assert policy.services == ("mailer", "web", "unknown")
    assert one.services == ("mailer", "web")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_policy_takes_other_services(name: str) -> None:
    assert parse_policy(with_services(SHIPPED[name], ["a", "b"])).services == ("a", "b", "unknown")


def test_a_draft_has_no_entries_and_scripts_for_an_application() -> None:
    keys = " ".join(f"bull:mail:{part}" for part in ("wait", "meta", "id", "events", "a", "b", "c", "d", "e"))
    commands = [*BULLMQ, f"EVALSHA {ADD_JOB} 9 {keys}", "SET shop:cart:1 x"]
    drafted = draft(evidence_of(*commands), shipped=SHIPPED)
    assert "bull:mail" not in drafted.text
    assert ADD_JOB not in drafted.text
    assert any(
        "10 keys of bullmq (bull:), with 4 commands by web, are left" in note for note in drafted.notes
    )


@pytest.mark.parametrize("own", [(), ("EVAL x 1 shop:cart:1",)], ids=["without scripts", "with scripts"])
def test_in_one_folder_each_file_lets_an_applications_unknown_scripts_run(
    own: tuple[str, ...], tmp_path: Path
) -> None:
    commands = [*BULLMQ, *(f"mailer> {one}" for one in CELERY), "stock> SET shop:cart:1 x"]
    drafted = draft(evidence_of(*commands, *(f"stock> {one}" for one in own)), "shop", SHIPPED)
    assert len(drafted.plan.applications) == 2
    for name, text in in_one_folder("shop", drafted.text, drafted.plan.applications).items():
        (tmp_path / f"{name}.yaml").write_text(text)
        assert check_policy(tmp_path / f"{name}.yaml")[0] == []
    assert check_policy(tmp_path)[:2] == ([], [])
    policy = load_policy(tmp_path)
    evaluator = Evaluator(policy)
    for service, key, severity in (
        ("web", "bull:mail:wait", "should"),
        ("web", "shop:cart:1", "must"),
        ("mailer", "celery", "must"),
        ("stock", "bull:mail:wait", "must"),
    ):
        argv = [b"EVALSHA", b"9" * 40, b"1", key.encode()]
        found = evaluator.decide(policy.number(service), argv).violations
        severities = {one.severity for one in found if one.rule == "script.unregistered"}
        assert (service, key, severities) == (service, key, {severity})


def test_two_files_without_claims_are_not_proposed_together() -> None:
    drafted = draft(evidence_of(*CELERY, "SET 17:cart x", "SET 18:cart x", "SET 19:cart x"), shipped=SHIPPED)
    assert drafted.plan.applications == []
    assert "_kombu.binding.celery" in drafted.text
