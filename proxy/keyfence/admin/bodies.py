"""JSON in and out: the fields of a request's body, and answers.

Rule: a body is checked completely before its request is carried out. Each fault is one sentence
(`BadRequest`).

Arguments of a command are JSON strings in UTF-8. A byte that is not UTF-8 is the lone surrogate U+DC80…U+DCFF
that Python's `surrogateescape` makes of it (0xFF is `\\udcff`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web

from .beside import answers

MAX_BODY = 1 << 20  # bytes
SHORT_BODY = 1 << 14  # bytes; a longer one is read in a thread
MAX_ARGUMENTS = 1000  # of a command; `keyfence explain` takes longer ones
MAX_OBSERVE = 86_400.0  # seconds; a longer change belongs in the configuration


class BadRequest(Exception):
    """A request cannot be carried out as it stands: why, in one sentence, and the HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


_PARTS = 3  # levels of an answer at which it is written part by part
# ASCII only, so that a lone surrogate of an argument goes back as it came.
_dumps = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


def json_answer(value: object, status: int = 200) -> web.Response:
    """A short answer."""
    return _answer((_dumps(value) + "\n").encode("ascii"), status)


async def long_answer(value: object) -> web.Response:
    """An answer that may list thousands of things. No client waits while it is written."""
    return _answer(await answers.do(_written, value), 200)


def _answer(body: bytes, status: int) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", charset="utf-8")


def _written(value: object) -> bytes:
    return b"".join([*(one.encode("ascii") for one in parts(value, _PARTS)), b"\n"])


def parts(value: object, levels: int) -> Iterator[str]:
    """The JSON of a value, in parts. The encoder keeps the interpreter's lock until it is done, so a thread
    that encodes everything in one piece stops all others."""
    if not value or not levels or not isinstance(value, dict | list | tuple):
        yield _dumps(value)
        return
    is_dict = isinstance(value, dict)
    between = "{" if is_dict else "["
    for item in value.items() if isinstance(value, dict) else value:
        yield between
        if is_dict:
            name, item = item
            yield _dumps({name: 0})[1:-2]  # as the encoder writes names, which need not be texts
        yield from parts(item, levels - 1)
        between = ","
    yield "}" if is_dict else "]"


async def read_fields(request: web.Request, known: set[str]) -> dict[str, Any]:
    """The JSON object in a body. It may have the known fields and no others. Raises BadRequest."""
    if request.content_type != "application/json":
        raise BadRequest("Content-Type must be application/json.", 415)
    text = await request.read()
    try:
        # A MiB takes a tenth of a second. A short one waits for nobody: it may open break-glass.
        body = _loaded(text) if len(text) <= SHORT_BODY else await answers.do(_loaded, text)
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


def _loaded(text: bytes) -> Any:
    return json.loads(text.decode("utf-8"), object_pairs_hook=_without_doubles)


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


def required_field(body: Mapping[str, Any], name: str) -> str:
    """A string that is not empty. Raises BadRequest."""
    value = text_field(body, name)
    if value is None:
        raise BadRequest(f'"{name}" is missing.')
    return value


def argv_field(body: Mapping[str, Any]) -> list[bytes]:
    """The arguments of a command in "argv", at least one. Raises BadRequest."""
    argv = body.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        raise BadRequest('"argv" must be a list of strings, the command\'s name first.')
    if len(argv) > MAX_ARGUMENTS:
        raise BadRequest(f'"argv" may have {MAX_ARGUMENTS} strings at most; use keyfence explain.')
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
