"""Validates a YAML source against a pydantic model and reports every fault at its place.

Rule: pydantic finds the faults. This module only gives them a line, a column and a message for people.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from keyfence.policy.diagnostics import Diagnostic, FileError, did_you_mean

from .yaml import Source

_Model = TypeVar("_Model", bound=BaseModel)
_kinds: dict[type[BaseModel], str] = {}  # every kind of file, with its description


def file_kind(words: str) -> Callable[[type[_Model]], type[_Model]]:
    """Registers a model as a kind of file. `words` say what the file is and which option names it."""

    def register(model: type[_Model]) -> type[_Model]:
        _kinds[model] = words
        return model

    return register


def other_kind(model: type[BaseModel], data: Any) -> type[BaseModel] | None:
    """Returns the model of the kind of file that `data` is, if it is plainly another kind than expected.

    It is, if no key at the top belongs to the expected kind alone and some keys belong to another kind.
    """
    keys = set(data) if isinstance(data, dict) else set()
    mine = set(_field_names(model))
    others = {one: set(_field_names(one)) for one in _kinds if one is not model}
    if keys & mine.difference(*others.values()):
        return None
    found = [one for one, known in others.items() if keys & (known - mine)]
    return max(found, key=lambda one: (len(keys & others[one]), -len(others[one])), default=None)


def validate(model: type[_Model], source: Source) -> _Model:
    """Returns the source as a model. Raises FileError with all faults."""
    try:
        return model.model_validate(source.data)
    except ValidationError as exc:
        other = other_kind(model, source.data)
        if other is not None:
            message = f"this is {_kinds[other]}; expected {_kinds[model].partition(',')[0]}"
            raise FileError([source.error((), message)]) from None
        errors = exc.errors(include_url=False, include_input=True)
        # A file without what each such file has is another one, and its content may be nobody's business.
        is_foreign = any(one["type"] == "missing" and len(one["loc"]) == 1 for one in errors)
        found: dict[tuple[Any, ...], Diagnostic] = {}
        for error in errors:
            diagnostic = _diagnostic(model, source, error)
            is_telling = error["type"] == "missing" or "; did you mean" in diagnostic.message
            if is_foreign and not is_telling:
                continue
            # A value that fits no branch of a union has a fault for each branch; one is enough.
            whole = diagnostic.message if error["type"] in ("missing", "extra_forbidden") else ""
            found.setdefault((diagnostic.place, whole, error["loc"][:-1]), diagnostic)
        raise FileError(found.values()) from None


def _diagnostic(model: type[BaseModel], source: Source, error: ErrorDetails) -> Diagnostic:
    loc = tuple(part for part in error["loc"] if not _is_tag(part))
    kind = error["type"]
    name = str(loc[-1]) if loc else ""
    if kind == "extra_forbidden":
        known = _field_names(_model_at(model, loc[:-1]))
        return source.error(loc, f"unknown key {name!r}{did_you_mean(name, known)}", of_key=True)
    if kind == "missing":
        return source.error(loc[:-1], f"{name!r} is missing", of_key=True)
    return source.error(loc, _message(error))


def _is_tag(part: int | str) -> bool:
    """Whether a part of a path is the name of a union's branch (model.py) and not in the file."""
    return isinstance(part, str) and part.startswith("(") and part.endswith(")")


MAX_LISTED = 6  # admitted words that an error lists even if it can suggest one of them


def _not_admitted(value: object, expected: str) -> str:
    """`expected` is pydantic's list: `'string', 'hash' or 'list'`."""
    words = re.findall(r"'([^']*)'", expected)
    near = did_you_mean(value, words) if isinstance(value, str) and len(words) > MAX_LISTED else ""
    meant = near if near.startswith("; did") else f"; expected {expected.replace(chr(39), '')}"
    return f"{value!r} is not admitted here{meant}"


def _message(error: ErrorDetails) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _not_admitted(value, context["expected"])
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return f"expected a mapping (name: value), not {_what(value)}"
    if kind in ("list_type", "tuple_type"):
        return f"expected a list, not {_what(value)}"
    if kind == "string_type":
        return f"expected text, not {_what(value)}"
    if kind in ("int_parsing", "int_type", "int_from_float"):
        return f"{value!r} is not a whole number"
    if kind == "string_pattern_mismatch":
        return f"{value!r} is not of the form {context['pattern']}"
    return f"{value!r}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _what(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"{value!r}" if value else "nothing"


def _model_at(model: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel]:
    """Returns the model of the mapping at `path`; names in dicts and indexes in lists are skipped."""
    current = model
    for part in path:
        for name, field in current.model_fields.items():
            if part in (name, field.alias):
                current = _model_in(field.annotation) or current
                break
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in typing.get_args(annotation) if (found := _model_in(arg))), None)


def _field_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
