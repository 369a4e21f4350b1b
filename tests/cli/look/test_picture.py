from __future__ import annotations

import json
from pathlib import Path

from keyfence.cli.look.picture import MAX_KINDS, Picture
from keyfence.cli.look.shown import there_text, totals
from keyfence.policy.services import UNKNOWN
from keyfence.process.looking import Looking

from .test_shown import kind, service, there


def picture() -> Picture:
    """What was seen of a Redis with some keys and two services."""
    nobody = service(UNKNOWN, "b")
    nobody.by, nobody.libraries = "", {}
    return Picture(
        redis="redis://h:1",
        address="127.0.0.1:7",
        client="redis-cli -p 7",
        draft="keyfence draft /f/commands.log redis://h:1 -o policy.yaml",
        is_kept=True,
        there=there(kind("a:<int>", 30, lasting=15), kind("b", 20, lasting=20), total=1000, looked_at=50),
        services=[nobody, service("web", "a:<int>", "b")],
    )


def test_it_has_the_facts_that_the_terminal_shows() -> None:
    one = picture()
    found = one.as_json()
    assert found["there"]["kinds"] == [
        {
            "name": "a:<int>",
            "keys": 600,
            "share": 0.6,
            "size": "58.6 kB",
            "types": ["string"],
            "expires": "50% in 1h",
        },
        {"name": "b", "keys": 400, "share": 0.4, "size": "39.1 kB", "types": ["string"], "expires": "never"},
    ]
    assert one.there is not None
    printed = " ".join(" ".join(there_text(one.redis, one.there)).split())
    for fact in found["there"]["kinds"]:
        assert f"{fact['name']} ~{fact['keys']} ~{fact['size']} string {fact['expires']}" in printed
    assert found["there"]["looked_at"] in printed
    assert found["there"]["is_sample"]
    assert found["totals"] == totals(one.services) == "2 services, 2 kinds of keys, 3 uses"
    assert [(each["name"], each["about"]) for each in found["services"]] == [
        (UNKNOWN, "clients without user, name and library"),
        ("web", "told by client name; redis-py 5.2.0"),
    ]


def test_lists_are_bounded() -> None:
    one = picture()
    many = [f"k{number}" for number in range(MAX_KINDS + 5)]
    one.there = there(*(kind(name, 1) for name in many))
    one.services = [service("web", *many)]
    found = one.as_json()
    for listed in (found["there"]["kinds"], found["services"][0]["uses"]):
        assert len(listed) == MAX_KINDS
    assert found["there"]["more"] == found["services"][0]["more"] == 5


def test_the_page_reads_what_was_written_last(tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    looking = Looking(lambda service, _peer: service, str(file))
    assert looking.seen() == {}
    one = picture()
    one.write(file)
    assert looking.seen() == json.loads(json.dumps(one.as_json()))
    one.services = ()
    one.write(file)
    assert looking.seen()["services"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["seen.json"]
