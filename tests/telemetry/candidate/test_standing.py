"""Which services would work on a cluster, and what to change for the others."""

from __future__ import annotations

from typing import Any

import pytest

from keyfence.telemetry.candidate.standing import Asked, standing_of

SPLITTABLE = ("MGET", "DEL", "EXISTS", "TOUCH", "UNLINK")
TEXTS = {"cart": "a:cart:<user>", "order": "a:order:<user>:<id>", "tagged": "a:{<user>}:x"}
TEXTS["other"] = "b:order:<user>:<id>"


def row(
    obstacle: str, command: str, *keys: str, times: int = 1, works: int = 0, **more: Any
) -> dict[str, Any]:
    named = [{"name": one, "is_entry": one in TEXTS} for one in keys]
    return {
        "service": "web",
        "obstacle": obstacle,
        "command": command,
        "keys": named,
        "script": "",
        "times": times,
        "works": works,
        "links": [],
        **more,
    }


def link(first: str, second: str, times: int = 1, values: int = 1) -> dict[str, Any]:
    return {"first": first, "second": second, "times": times, "values": values}


def standing(*rows: dict[str, Any], seconds: float = 10.0, **commands: int) -> dict[str, Any]:
    return standing_of(rows, Asked({"web": 7, "idle": 0, **commands}, TEXTS, seconds))


def change(one: dict[str, Any]) -> str:
    (found,) = standing(one)["rows"]
    return str(found["change"])


def test_a_service_is_ready_if_its_commands_were_seen_and_met_nothing() -> None:
    found = standing(row("slots.command", "MGET", times=0, works=4), row("pubsub", "PUBLISH"))
    assert [(one["service"], one["readiness"], one["share_slots"]) for one in found["services"]] == [
        ("idle", "no traffic", 0),
        ("web", "ready", 4),
    ]


def test_what_a_cluster_refuses_answers_in_part_or_may_refuse_keeps_a_service_from_being_ready() -> None:
    for obstacle in ("database", "one.node", "command.unknown"):
        assert standing(row(obstacle, "X"))["services"][1]["readiness"] == "not ready"


def test_each_row_has_its_positive_evidence() -> None:
    found = standing(
        row("slots.command", "MGET", "cart", "order", times=3),
        row("slots.command", "MGET", times=0, works=5),
        row("slots.transaction", "SET", "cart", "order", times=2),
        row("slots.transaction", "EXEC", times=0, works=9),
    )
    assert [(one["command"], one["times"], one["works"]) for one in found["rows"]] == [
        ("MGET", 3, 5),
        ("SET", 2, 9),
    ]


def test_a_common_placeholder_is_where_the_hash_tag_goes() -> None:
    one = row(
        "slots.command", "MGET", "cart", "order", times=4, links=[link("user", "user", 4), link("user", "id")]
    )
    assert change(one) == "write a:cart:{<user>} and a:order:{<user>}:<id>"
    one["links"] = [link("user", "user", 3)]
    assert change(one) == "write a:cart:{<user>} and a:order:{<user>}:<id>, which fits 3 of 4"


def test_a_part_that_hardly_varies_is_not_where_the_hash_tag_goes() -> None:
    few, many = link("id", "id", 9, values=2), link("user", "user", 9, values=9)
    for links in ([few, many], [many, few]):
        one = row("slots.command", "MGET", "order", "other", times=9, links=links)
        assert change(one) == "write a:order:{<user>}:<id> and b:order:{<user>}:<id>"


def test_keys_of_no_entry_get_it_in_their_shape() -> None:
    one = row("slots.command", "MGET", "u:<int>:a", "u:<int>:b", links=[link("2", "2")])
    assert change(one) == "write u:{<int>}:a and u:{<int>}:b"


def test_without_a_common_part_the_command_must_change() -> None:
    for other in ("cart", "order"):
        assert change(row("slots.command", "MGET", "cart", other)) == (
            "send a command for each key, or have keyfence split it (split in the configuration): "
            "they have no part in common"
        )
    tagged = row("slots.command", "MSET", "cart", "tagged", links=[link("user", "user")])
    assert change(tagged) == "send a SET for each key, which is not atomic: their hash tags differ"


@pytest.mark.parametrize(
    ("obstacle", "command", "begins"),
    [
        *(("slots.command", name, "send a command for each key") for name in SPLITTABLE),
        ("slots.command", "RENAME", "use keys of one hash slot, or read and write in two commands"),
        ("slots.transaction", "SET", "keep to the keys of one hash slot, or use two transactions"),
        ("slots.script", "EVAL", "keep to the keys of one hash slot, or run two scripts"),
        ("slots.watch", "WATCH", "watch the keys of one hash slot only"),
    ],
)
def test_what_to_do_instead_fits_the_command(obstacle: str, command: str, begins: str) -> None:
    assert change(row(obstacle, command, "cart", "order")).startswith(begins)


def test_publishing_is_shown_as_a_rate() -> None:
    assert change(row("pubsub", "PUBLISH", times=50)).startswith("5 a second go to every node")
