"""JSON in and out of the admin listener."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, cast

import pytest
from aiohttp import web

from keyfence.admin import bodies
from keyfence.admin.bodies import MAX_ARGUMENTS, BadRequest, argv_field, json_answer, long_answer

ANSWERS: list[Any] = [
    {
        "findings": [{"id": "a", "counts": {"observed": 3}, "examples": []}, {}],
        "total": 2,
        "in_memory": False,
    },
    [{"service": "web", "example": "\udcff€", "clients": [{"address": "10.0.0.7:1"}]}],
    {"commands": {"web": {7: {"5": 6}, None: 2, True: 1.5}}, "none": None, "empty": [], "text": 'a "b"'},
    [],
    {},
    "text",
    ({"a": (1, 2)},),
]


@pytest.mark.parametrize("value", ANSWERS, ids=repr)
def test_an_answer_is_the_same_in_parts_as_in_one_piece(value: Any) -> None:
    expected = json.dumps(value, separators=(",", ":")) + "\n"
    short, long = json_answer(value), asyncio.run(long_answer(value))
    for one in (short, long):
        assert isinstance(one.body, bytes)
        assert one.body.decode("ascii") == expected
        assert one.headers["Content-Type"] == "application/json; charset=utf-8"


def test_no_part_of_a_long_list_is_long() -> None:
    """The encoder keeps the interpreter's lock for each part."""
    row = {"service": "web", "clients": [{"address": "10.0.0.7:1"}] * 5}
    found = {"findings": [row] * 1_000, "total": 1_000}
    assert max(map(len, bodies.parts(found, 3))) < 2 * len(json.dumps(row))


def test_a_long_answer_is_written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[threading.Thread] = []
    original = bodies._written

    def written(value: object) -> bytes:
        writers.append(threading.current_thread())
        return original(value)

    monkeypatch.setattr(bodies, "_written", written)
    asyncio.run(long_answer([1]))
    assert writers[0] is not threading.main_thread()


class Body:
    """A request with a body."""

    content_type = "application/json"

    def __init__(self, fields: dict[str, Any]) -> None:
        self.text = json.dumps(fields).encode()

    async def read(self) -> bytes:
        return self.text


def test_a_long_body_is_read_beside_the_loop_and_a_short_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []
    original = bodies._without_doubles

    def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        readers.append(threading.current_thread())
        return original(pairs)

    monkeypatch.setattr(bodies, "_without_doubles", without_doubles)
    for fields in ({"for": 60}, {"argv": ["x"] * 10_000}):
        request = cast(web.Request, Body(fields))
        assert asyncio.run(bodies.read_fields(request, {"for", "argv"})) == fields
    assert [one is threading.main_thread() for one in readers] == [True, False]


def test_a_command_to_explain_has_a_bounded_number_of_arguments() -> None:
    argv = ["MGET", *["k"] * (MAX_ARGUMENTS - 1)]
    assert len(argv_field({"argv": argv})) == MAX_ARGUMENTS
    with pytest.raises(BadRequest, match="1000 strings at most"):
        argv_field({"argv": [*argv, "k"]})
