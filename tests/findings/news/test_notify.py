from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from keyfence.findings.finding import Event, Finding, State, finding_id
from keyfence.findings.news import notify
from keyfence.findings.news.notify import LONGEST_PAUSE, MAX_SHOWN, Feed, Notifier, message
from keyfence.telemetry.counters import Counters
from tests.findings.rows import NOON

BOTH = frozenset({State.NEW, State.REOPENED})


def finding(name: str = "order", **fields: Any) -> Finding:
    key = ("shop", "scope.write", "SET", name, "")
    example = {"at": NOON, "decision": "d-1", "key": f"{name}:7", "client": {}, "command": {}}
    values = {
        **dict(zip(("service", "rule", "command", "entry", "shape"), key, strict=True)),
        "id": finding_id(key),
        "severity": "must",
        "state": State.NEW,
        "since": NOON,
        "first": NOON,
        "last": NOON,
        "counts": {"observed": 3},
        "owner": "billing",
        "hint": "ask",
        "revision": "r",
        "clients": [],
        "examples": [example],
    }
    return Finding(**(values | fields))


def event(one: Finding, state: State = State.NEW) -> Event:
    return Event(one.id, NOON, state, "first seen")


class Webhook:
    """A local server that takes what is sent, or refuses it."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.status = 200
        self.delay = 0.0
        self.now = 0.0
        self.counters = Counters()
        self.known: dict[str, Finding] = {}

    def told(self, *findings: Finding, state: State = State.NEW) -> None:
        self.known |= {one.id: one for one in findings}
        self.notifier.changed([event(one, state) for one in findings])

    async def tick(self, at: float) -> None:
        self.now = at
        await self.notifier.tick(self.session)

    async def _take(self, request: web.Request) -> web.Response:
        self.got.append(await request.json())
        return web.Response(status=self.status, headers={"Location": "http://127.0.0.1:1/"})


def with_webhook(
    main: Callable[[Webhook], Coroutine[Any, Any, None]], form: str = "json", group: float = 300.0
) -> Webhook:
    webhook = Webhook()

    async def scenario() -> None:
        application = web.Application()
        application.router.add_post("/T0/secret", webhook._take)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        feed = Feed(f"http://127.0.0.1:{port}/T0/secret", BOTH, group, form)
        webhook.notifier = Notifier(feed, webhook.known.get, webhook.counters, clock=lambda: webhook.now)
        async with aiohttp.ClientSession() as webhook.session:
            await main(webhook)
        await runner.cleanup()

    asyncio.run(scenario())
    return webhook


def test_changes_are_gathered_and_sent_as_one_message() -> None:
    async def main(webhook: Webhook) -> None:
        webhook.told(finding())
        await webhook.tick(100)
        webhook.told(finding("cart"), state=State.REOPENED)
        await webhook.tick(299)
        assert webhook.got == []
        await webhook.tick(300)
        await webhook.tick(1000)

    (body,) = with_webhook(main).got
    assert body["text"] == "keyfence: 1 new and 1 reopened findings (shop)"
    assert [(one["entry"], one["change"], one["example"]) for one in body["findings"]] == [
        ("order", "new", "order:7"),
        ("cart", "reopened", "cart:7"),
    ]
    assert body["more"] == 0


def test_states_that_nobody_asked_for_are_not_sent() -> None:
    async def main(webhook: Webhook) -> None:
        webhook.told(finding(), state=State.QUIET)
        await webhook.tick(1000)

    assert with_webhook(main).got == []


def test_a_finding_that_is_gone_is_not_sent() -> None:
    async def main(webhook: Webhook) -> None:
        webhook.told(finding())
        webhook.known.clear()
        await webhook.tick(1000)

    assert with_webhook(main).got == []


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_refused_message_is_sent_again_with_growing_pauses(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = []

    async def main(webhook: Webhook) -> None:
        webhook.status = status
        webhook.told(finding())
        for second in range(300, 420):
            before = len(webhook.got)
            await webhook.tick(second)
            if len(webhook.got) > before:
                tries.append(second - 300)
        webhook.told(finding("cart"))
        webhook.status = 200
        await webhook.tick(1000)

    webhook = with_webhook(main)
    assert tries == [0, 1, 3, 7, 15, 31, 63]
    assert [len(one["findings"]) for one in webhook.got] == [1] * 7 + [2]
    assert webhook.counters.notification_failures == 7
    told = capsys.readouterr().err
    assert "secret" not in told
    assert f"127.0.0.1 does not take notifications: HTTP status {status}; they wait" in told
    assert "takes notifications again" in told


def with_a_change_for(host: str) -> tuple[Notifier, Counters]:
    """A notifier with one change to send, and its counters."""
    counters = Counters()
    one = finding()
    feed = Feed(f"http://{host}/T0/secret", BOTH, 0.0)
    notifier = Notifier(feed, {one.id: one}.get, counters, clock=lambda: 1.0)
    notifier.changed([event(one)])
    return notifier, counters


def test_a_webhook_that_is_down_is_told_without_its_url(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        notifier, counters = with_a_change_for("127.0.0.1:1")
        await notifier.close()
        assert counters.notification_failures == 1

    asyncio.run(main())
    told = capsys.readouterr().err
    assert "secret" not in told
    assert "ClientConnectorError" in told
    assert "1 notification that waited for the webhook at 127.0.0.1 is lost" in told


def test_a_host_that_is_no_name_is_a_failure_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        notifier, counters = with_a_change_for("hooks..example.com")
        async with aiohttp.ClientSession() as session:
            await notifier.tick(session)
        assert counters.notification_failures == 1

    asyncio.run(main())
    told = capsys.readouterr().err
    assert "secret" not in told
    assert "Unicode" in told


def test_a_finding_that_cannot_be_read_does_not_end_the_notifications() -> None:
    def broken(_one: str) -> Finding | None:
        raise ValueError("a state that no version writes")

    async def main(webhook: Webhook) -> None:
        webhook.told(finding())
        find, webhook.notifier._find = webhook.notifier._find, broken
        await webhook.tick(300)
        assert webhook.counters.notification_failures == 1
        webhook.notifier._find = find
        await webhook.tick(1000)

    assert len(with_webhook(main).got) == 1


def test_pauses_have_a_limit() -> None:
    async def main(webhook: Webhook) -> None:
        webhook.status = 500
        webhook.told(finding())
        for turn in range(20):
            await webhook.tick(1e6 * turn)
        assert webhook.notifier._pause == LONGEST_PAUSE

    with_webhook(main)


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MAX_WAITING", 30)

    async def main(webhook: Webhook) -> None:
        webhook.told(*(finding(f"entry{number}") for number in range(50)))
        await webhook.tick(1000)

    webhook = with_webhook(main)
    (body,) = webhook.got
    assert webhook.counters.notifications_dropped == 20
    assert (len(body["findings"]), body["more"]) == (MAX_SHOWN, 30 - MAX_SHOWN)


def test_what_waits_is_sent_at_the_end() -> None:
    async def main(webhook: Webhook) -> None:
        webhook.told(finding())
        await webhook.notifier.close()

    assert len(with_webhook(main).got) == 1


def test_slack_gets_text_in_which_a_key_is_inert() -> None:
    hostile = finding("<!channel> & <http://x|y> https://evil.example `*x*`", shape="", hint="x")
    body = message("slack", [hostile], {hostile.id: event(hostile)})
    first, second = body["text"].split("\n")
    assert first == "keyfence: 1 new finding (shop)"
    shown = "&lt;!channel&gt; &amp; &lt;http://x|y&gt; https://evil.example '*x*' breaks scope.write"
    assert shown in second
    assert second.startswith("• `f-")
    assert second.endswith("`")
    assert second.count("`") == 2  # all of it is code
    assert [block["text"]["text"] for block in body["blocks"]] == [first, second]
    assert all(block["text"]["verbatim"] for block in body["blocks"])
    assert (body["parse"], body["unfurl_links"], body["unfurl_media"]) == ("none", False, False)


def test_a_line_for_slack_is_bounded() -> None:
    long = finding("<" * 5000)
    body = message("slack", [long], {long.id: event(long)})
    assert all(len(block["text"]["text"]) <= 3000 for block in body["blocks"])


def test_slack_hears_how_many_are_not_shown() -> None:
    many = [finding(f"entry{number}") for number in range(MAX_SHOWN + 5)]
    body = message("slack", many, {one.id: event(one) for one in many})
    assert body["text"].endswith("\n• and 5 more: keyfence findings --state active")
