from __future__ import annotations

from typing import Any

from keyfence.cli.look.kinds import Seen
from keyfence.cli.look.used import NO_KEY, services_of
from keyfence.telemetry.tally import Row

WEB = {"address": "127.0.0.1", "name": "web-1", "library": "redis-py", "version": "5.2.0"}


def row(service: str, command: str, shape: str, count: int, rule: str = "key.unregistered") -> Row:
    values: dict[str, Any] = {
        "service": service,
        "rule": rule,
        "severity": "must",
        "command": command,
        "entry": "",
        "shape": shape,
        "count": count,
        "actions": {"observed": count},
        "first": 1.0,
        "last": 2.0,
        "clients": [WEB] if service == "web" else [],
        "example": "",
        "hint": "",
    }
    return Row(**values)  # type: ignore[typeddict-item]


def test_each_service_has_what_it_reads_and_writes() -> None:
    rows = [
        row("web", "HSET", "cart:<int>", 3),
        row("web", "HGETALL", "cart:<int>", 5),
        row("mail", "HGET", "cart:<int>", 7),
    ]
    mail, web = services_of(rows, Seen())
    assert (mail.name, web.name, web.by, list(web.libraries)) == (
        *("mail", "web", "client name"),
        ["redis-py 5.2.0"],
    )
    (cart,) = web.ordered
    assert (cart.kind, cart.reads, cart.writes, cart.names) == ("cart:<int>", 5, 3, ["HGETALL", "HSET"])
    assert mail.times == 7


def test_kinds_are_joined_as_those_of_the_keys_that_are_there() -> None:
    there = Seen()
    for code in ("BAG", "PEN", "MUG", "HAT"):
        there.add_keys(f"page:{code}-<int>", {"string": 3})
    (web,) = services_of(
        [row("web", "GET", "page:BAG-<int>", 1), row("web", "GET", "page:PEN-<int>", 1)], there
    )
    assert [(one.kind, one.reads) for one in web.ordered] == [("page:<*>", 2)]
    assert not any(facts.uses for facts in there.facts.values())


def test_channels_scripts_and_commands_without_keys_have_a_place() -> None:
    rows = [
        row("web", "PUBLISH", "news:<int>", 1, "channel.write"),
        row("web", "SUBSCRIBE", "news:<int>", 2, "channel.read"),
        row("web", "EVALSHA", "a" * 40, 3, "script.unregistered"),
        row("web", "KEYS", "", 4, "command.forbidden"),
        row("web", "KEYS", "*", 4, "scan.scope"),
        row("web", "EVALSHA", "", 3, "command.forbidden"),
    ]
    (web,) = services_of(rows, Seen())
    assert {(one.kind, one.reads, one.writes, one.others) for one in web.ordered} == {
        ("channel news:<int>", 2, 1, 0),
        ("script aaaaaaaaaaaa", 0, 0, 3),
        (NO_KEY, 0, 0, 4),
    }
    assert not any(one.is_of_keys for one in web.ordered)
