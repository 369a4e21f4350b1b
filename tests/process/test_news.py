"""A running keyfence sends its news, beside others with the same store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyfence.admin.client import RELOAD_TIMEOUT, ask
from keyfence.config.news import NewsModel
from keyfence.findings.database import Database
from keyfence.findings.finding import DAY
from keyfence.findings.news.claims import Claims
from keyfence.findings.news.plan import Period
from keyfence.findings.store import Store
from keyfence.process.news import plan_of
from tests.clients.running import eventually, metric
from tests.findings.news.webhooks import Hooks, hooks_in_a_thread
from tests.findings.rows import batch, row
from tests.process.test_control import Stage
from tests.servers import Keyfence, RedisServer, running_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with hooks_in_a_thread() as running:
        yield running


def a_store_with_news_of_three_days(folder: Path) -> None:
    database = Database(f"sqlite:///{folder}/findings.db")
    now = time.time()
    Store(database, "earlier").write(batch(row(5, now - 2 * DAY, service="web", contact="#shop")))
    Claims(database, "earlier").begin(Period("day before", now - 3 * DAY, DAY), 0)
    database.close()


def test_keyfences_with_one_store_send_one_digest_once_a_reload_asks_for_it(
    tmp_path: Path,
    server: RedisServer,
    hooks: Hooks,
    start_keyfence: Callable[..., Keyfence],
) -> None:
    a_store_with_news_of_three_days(tmp_path)
    stage = Stage(tmp_path, server, start_keyfence)
    stage.run()
    both = [stage.keyfence, start_keyfence("--config", stage.config, "--workers", "1")]
    with stage.config.open("a") as config:
        config.write(f"news: {{every: day, at: '00:00', to: {{webhook: {hooks.url}/all/secret}}}}\n")
    for one in both:
        answer = ask(one.ready.admin, "/-/reload", {}, RELOAD_TIMEOUT, str(tmp_path / "token"))
        assert (answer["changed"], answer["needs_restart"]) == (["news"], [])

    def sent() -> list[float]:
        return sorted(metric(one, "keyfence_news_sent_total") for one in both)

    eventually(lambda: sent() == [0, 1], "one of them has sent the digest")
    ((path, body),) = hooks.got
    assert (path, body["text"]) == ("/all/secret", "keyfence: 1 new finding")
    assert [(one["owner"], one["count"]) for one in body["new"]] == [("#shop", 5)]


def test_the_settings_become_a_plan() -> None:
    said = NewsModel.model_validate(
        {
            "every": "week",
            "at": "16:30",
            "weekday": "friday",
            "to": {"webhook": "https://a.example", "as": "slack"},
            "owners": {"x": [{"webhook": "https://a.example", "as": "slack"}, {"email": "a@b"}]},
            "smtp": {"host": "mail", "from": "k@b"},
        }
    )
    plan = plan_of(said)
    assert (plan.weekday, plan.hour, plan.minute, plan.zone) == (4, 16, 30, "UTC")
    both, mail = plan.targets
    assert (both.gets_rest, both.owners, both.form) == (True, {"x"}, "slack")
    assert (mail.gets_rest, mail.email) == (False, ("a@b",))
    assert plan.smtp is not None
    assert (plan.smtp.port, plan.smtp.tls) == (587, "starttls")
