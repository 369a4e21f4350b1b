"""The query of a request's URL.

Rule: an unknown or repeated parameter is an error, so that a misspelt filter never lists everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from aiohttp import web

from .bodies import BadRequest

REPEATED = frozenset({"mode"})  # the parameters that may be given several times


def query(request: web.Request, known: set[str]) -> dict[str, str]:
    """The parameters of a request, which may have the known ones and no others. Raises BadRequest."""
    found: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            raise BadRequest(f"Unknown parameter {name[:64]!r}; known ones are {', '.join(sorted(known))}.")
        if name in found and name not in REPEATED:
            raise BadRequest(f"The parameter {name!r} is given twice.")
        found[name] = value
    return found


def number_in(values: Mapping[str, str], name: str, default: float) -> float:
    """A number that is not negative. Raises BadRequest."""
    text = values.get(name, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1e12:
        raise BadRequest(f"{name!r} must be a number that is not negative: {text[:64]!r}.")
    return number
