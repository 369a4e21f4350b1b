from __future__ import annotations

from keyfence.cli.look.kinds import Seen
from keyfence.cli.look.shown import MAX_NEWS, WIDTH, news, services_text, there_text, totals
from keyfence.cli.look.there import Kind, There
from keyfence.cli.look.used import Service, Use


def kind(name: str, keys: int, *, lasting: int = 0, longest: int = 3_600_000) -> Kind:
    return Kind(name, keys, keys * 100, {"string": keys}, lasting, longest)


def there(*kinds: Kind, total: int = 100, looked_at: int = 100) -> There:
    return There(0, total, looked_at, list(kinds), Seen(), {3: 5}, [])


def service(name: str, *kinds: str) -> Service:
    uses = {one: Use(one, is_of_keys=True, reads=1, commands={"GET": 1}, shapes={one}) for one in kinds}
    return Service(name, "client name", {"redis-py 5.2.0": None}, uses)


def test_all_keys_are_listed_by_kind() -> None:
    kinds = kind("a:<int>", 60), kind("b", 30, lasting=30), kind("c", 10, lasting=5)
    assert there_text("redis://h:1", there(*kinds)) == [
        "redis://h:1, database 0: 100 keys, 9.8 kB, all looked at.",
        "",
        "kind of keys                            keys      size  type    expire",
        "a:<int>                                   60    5.9 kB  string  in 1h",
        "b                                         30    2.9 kB  string  never",
        "c                                         10    1000 B  string  50% in 1h",
        "Database 3 was not looked at: 5 keys; name it with /3.",
    ]


def test_a_sample_says_that_it_is_one() -> None:
    first, *_, last, _ = there_text("redis://h:1", there(kind("a", 50), total=2000, looked_at=50))
    assert "2,000 keys, about 195.3 kB; 50 of them were looked at" in first
    assert last.split() == ["a", "~2,000", "~195.3", "kB", "string", "in", "1h"]


def test_no_line_is_wider_than_a_terminal() -> None:
    wide = service("web", "k" * 30, "k" * 33)
    for use in wide.uses.values():
        use.commands = dict.fromkeys(("ZREVRANGEBYSCORE", "ZREMRANGEBYSCORE", "ZRANGESTORE", "ZADD"), 1)
    lines = [*services_text([wide]), *there_text("redis://h:1", there(kind("k" * 33, 10**9)))]
    assert max(len(one) for line in lines for one in line.split("\n")) <= WIDTH


def test_what_is_new_is_told_once() -> None:
    known: set[tuple[str, str]] = set()
    assert news(known, [service("web", "a")]) == ["  web reads a"]
    assert news(known, [service("web", "a"), service("mail", "a")]) == ["  mail reads a"]
    assert news(known, [service("web", "a")]) == []


def test_little_is_told_at_a_time() -> None:
    known: set[tuple[str, str]] = set()
    lines = news(known, [service("web", *(f"k{number}" for number in range(20)))])
    assert len(lines) == MAX_NEWS + 1
    assert lines[-1] == "  and 12 more; the summary has all"
    assert len(known) == 20


def test_names_from_clients_cannot_control_a_terminal() -> None:
    lines = list(services_text([service("web", "a\x1b[2Jb")]))
    assert not any("\x1b" in line for line in lines)


def test_totals_count_each_kind_once() -> None:
    assert totals([service("web", "a", "b"), service("mail", "a")]) == "2 services, 2 kinds of keys, 3 uses"
