"""JSON Schemas of the files that people write. Editors use them to complete and check.

Rule: a schema comes from the models that read the file, and describes values as people write them (`60s`, not
milliseconds). It may admit more than the models do, never less.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from keyfence.authoring.testing import FileModel
from keyfence.config.models import ConfigModel
from keyfence.policy.compiled.splittable import COUNTED, LISTED
from keyfence.policy.enforcement.waivers import WaiversModel
from keyfence.policy.rules import RULES
from keyfence.policy.source.model import PolicyModel

KINDS: Mapping[str, type[BaseModel]] = {
    "policy": PolicyModel,
    "config": ConfigModel,
    "waivers": WaiversModel,
    "tests": FileModel,
}

# keyfence reads every scalar as text. To an editor, 5 is a number, and yes may be a boolean.
_TEXT = ["string", "number", "boolean"]
_DURATION = {"type": "string", "pattern": "^([0-9]{1,12}(ms|s|m|h|d|w))+$"}
_FLAG = {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false", "yes", "no"]}]}
# How people write the values that these validators read, by the validator's name.
_WRITTEN: Mapping[str, JsonSchemaValue] = {
    "_duration": _DURATION,
    "_size": {"type": ["string", "integer"], "pattern": "^[0-9]{1,12} *([kKmMgG]?[bB])?$"},
    "_yes_or_no": _FLAG,
    "_date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
    "_rule": {"enum": list(RULES)},
    "splittable": {"enum": [*LISTED, *COUNTED]},
}
_ONLY_AS_MODELLED = frozenset({"_hidden_mapping"})
_VALUE_FOR_ALL = frozenset({"_for_every_service"})  # or, in place of a mapping, one value for all names
_ONE_OR_SEVERAL = frozenset({"_several"})  # or, in place of a list, one value


def schema(kind: str) -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a kind of file. Raises KeyError if KINDS lacks it."""
    model = KINDS[kind]
    made = model.model_json_schema(by_alias=True, schema_generator=_Written)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"keyfence: {kind}",
    }
    slim = _slim(made)
    assert isinstance(slim, dict)
    return head | slim


class _Written(GenerateJsonSchema):
    """Describes values as people write them, not as the models hold them."""

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        return super().str_schema(schema) | {"type": _TEXT}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        return {"enum": list(schema["expected"])}

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        name = _name_of(schema)
        if name in _WRITTEN:
            return _WRITTEN[name]
        inner = self.generate_inner(schema["schema"])
        if name in _ONLY_AS_MODELLED:
            return inner
        if name in _VALUE_FOR_ALL:
            return {"anyOf": [inner["additionalProperties"], inner]}
        if name in _ONE_OR_SEVERAL:
            return {"anyOf": [inner["items"], inner]}
        return {"anyOf": [{"type": _TEXT}, inner]}  # the validator also reads a short text form

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Uses anyOf: a value may match several of the forms, and the model picks one."""
        made = super().tagged_union_schema(schema)
        return {"anyOf": made.pop("oneOf"), **made}

    def function_after_schema(self, schema: core_schema.AfterValidatorFunctionSchema) -> JsonSchemaValue:
        name = _name_of(schema)
        return _WRITTEN[name] if name in _WRITTEN else super().function_after_schema(schema)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, text in _comments(schema["cls"]).items():
            if name in made.get("properties", {}):
                made["properties"][name].setdefault("description", text)
        return made


def _name_of(schema: Any) -> str:
    return getattr(schema["function"]["function"], "__name__", "")


_COMMENTED = re.compile(r"^    (\w+?)_?: .*  # (.+)$", re.MULTILINE)


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """Returns the comment after each field in the source of a model and of its base models."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel:
            found |= dict(_COMMENTED.findall(inspect.getsource(one)))
    return found


def _slim(made: Any, *, names: bool = False) -> Any:
    """Removes titles, which only repeat names, and defaults, which have the form of parsed values.

    `names`: the keys are field names, so a field called "title" or "default" stays.
    """
    if isinstance(made, dict):
        return {
            key: _slim(value, names=key in ("properties", "$defs") and not names)
            for key, value in made.items()
            if names or key not in ("title", "default")
        }
    return [_slim(one) for one in made] if isinstance(made, list) else made
