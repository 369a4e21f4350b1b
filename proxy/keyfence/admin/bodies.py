"""JSON in and out: the fields of a request's body, and answers.

Rule: a body is checked completely before its request is carried out. Each fault is one sentence
(`BadRequest`).

Arguments of a command are JSON strings in UTF-8. A byte that is not UTF-8 is the lone surrogate U+DC80…U+DCFF
that Python's `surrogateescape` makes of it (0xFF is `\\udcff`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

MAX_BODY = 1 << 20  # bytes
MAX_OBSERVE = 86_400.0  # seconds; a longer change belongs in the configuration


class BadRequest(Exception):
    """A request cannot be carried out as it stands: why, in one sentence, and the HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


def json_answer(value: object, status: int = 200) -> web.Response:
    return web.json_response(value, status=status, dumps=_dumps)


def _dumps(value: object) -> str:
    # ASCII only, so that a lone surrogate of an argument goes back as it came.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n"


async def read_fields(request: web.Request, known: set[str]) -> dict[str, Any]:
    """The JSON object in a body. It may have the known fields and no others. Raises BadRequest."""
    if request.content_type != "application/json":
        raise BadRequest("Content-Type must be application/json.", 415)
    try:
        body = json.loads((await request.read()).decode("utf-8"), object_pairs_hook=_without_doubles)
    except UnicodeDecodeError:
        raise BadRequest("The body is not UTF-8.") from None
    except json.JSONDecodeError as fault:
        where = f"line {fault.lineno}, column {fault.colno}"
        raise BadRequest(f"The body is not JSON: {fault.msg} at {where}.") from None
    except ValueError:  # a number of thousands of digits
        raise BadRequest("The body holds a number that is too long.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    unknown = sorted(body.keys() - known)
    if unknown:
        allowed = f"known fields are {', '.join(sorted(known))}" if known else "this request takes no fields"
        raise BadRequest(f"Unknown field {unknown[0][:64]!r}; {allowed}.")
    return body


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BadRequest("A field is given twice.")
    return fields


def text_field(body: Mapping[str, Any], name: str) -> str | None:
    """A string that is not empty; None: the field is missing. Raises BadRequest."""
    value = body.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise BadRequest(f'"{name}" must be a string, and not empty.')
    return value


def argv_field(body: Mapping[str, Any]) -> list[bytes]:
    """The arguments of a command in "argv", at least one. Raises BadRequest."""
    argv = body.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        raise BadRequest('"argv" must be a list of strings, the command\'s name first.')
    try:
        return [part.encode("utf-8", "surrogateescape") for part in argv]
    except UnicodeEncodeError:
        text = '"argv" holds a surrogate that encodes no byte; bytes are U+DC80 to U+DCFF.'
        raise BadRequest(text) from None


def seconds_field(body: Mapping[str, Any]) -> float:
    """The seconds in "for", more than 0 and at most MAX_OBSERVE. Raises BadRequest."""
    value = body.get("for")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest('"for" must be a number of seconds.')
    if not 0 < value <= MAX_OBSERVE:
        raise BadRequest(f'"for" must be more than 0 and at most {MAX_OBSERVE:.0f} seconds.')
    return float(value)
