"""Compiles the requirements of entries and scopes on commands, values and times to live.

Rule: each requirement of an entry replaces the same one of its scope, as with rights. A word in a key that
stands for a type (`type_words`) counts like a given type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keyfence.policy.compiled.key_commands import KeyCommands
from keyfence.policy.compiled.policy import Entry, Fields, types_in
from keyfence.policy.compiled.requirements import ON_CONTENT, REQUIREMENTS, requirements_of
from keyfence.policy.compiled.ttl import TtlRule
from keyfence.policy.patterns.patterns import KeyPattern, Literal
from keyfence.policy.patterns.value_forms import Form, NumberRange, parse_range
from keyfence.policy.records import replaced
from keyfence.policy.source.model import Requirements, ScopeModel, TtlModel
from keyfence.policy.units import duration_text

from .commands import build_key_commands
from .context import CompilerContext, Scope

LONGEST_GRACE = 600_000  # milliseconds; keys wait for it in memory
_HOLDERS = {item: REQUIREMENTS[item].types for item in ON_CONTENT}


def build_requirements(
    context: CompilerContext, name: str, text: str, model: Requirements, path: tuple[str, ...]
) -> Entry:
    """Returns the requirements of an entry or scope. `text` shows how its keys are written."""
    _check_types(context, model, path)
    if model.field_case and not _has_fields(context, model):
        context.error((*path, "field_case"), "no fields are listed; list them under fields")
    return _finished(
        Entry(
            name=name,
            text=text,
            types=tuple(model.type),
            ttl=_ttl(context, model.ttl, (*path, "ttl")),
            fields=_fields(context, model, path),
            field_case=model.field_case or "",
            values=None if model.values is None else context.form(model.values, (*path, "values")),
            members=None if model.members is None else context.form(model.members, (*path, "members")),
            scores=_scores(context, model, path),
            maxlen=None if model.maxlen is None else int(model.maxlen.lstrip("~")),
            maxlen_exact=model.maxlen is not None and not model.maxlen.startswith("~"),
            max_length=model.max_length,
            commands=build_key_commands(context, model.commands, (*path, "commands")),
            max_value=model.max_value,
            max_fields=model.max_fields,
            max_members=model.max_members,
            is_plain=False,
        )
    )


def in_scope(
    context: CompilerContext, own: Entry, text: str, pattern: KeyPattern, home: Scope | None
) -> Entry:
    """Returns an entry's requirements on the keys of one pattern, with its scope's and those of type
    words."""
    scope = home.asked if home is not None else None
    types = own.types
    spoken = _spoken(pattern, context.type_words)
    if spoken and not types:
        types = spoken
    elif spoken and not set(spoken) & set(types):
        wanted, given = " or ".join(spoken), " or ".join(types)
        message = f"by type_words the key is a {wanted}, but its type is {given}"
        context.error(("keys", own.name, "type"), message)
    if scope is None:
        return _finished(replaced(own, text=text, types=types))
    types = types or scope.types
    inherited = {
        item: getattr(scope, item)
        for item, holders in _HOLDERS.items()
        if getattr(own, item) is None and (not types or set(types) & set(holders))
    }
    if "maxlen" in inherited:
        inherited["maxlen_exact"] = scope.maxlen_exact
    return _finished(
        replaced(
            own,
            text=text,
            types=types,
            ttl=own.ttl if own.ttl is not None else scope.ttl,
            field_case=own.field_case or scope.field_case,
            max_length=own.max_length or scope.max_length,
            commands=own.commands.within(scope.commands) if own.commands is not None else scope.commands,
            **inherited,
        )
    )


def read_type_words(context: CompilerContext) -> dict[bytes, tuple[str, ...]]:
    """Returns the words that stand for a key's type; each is one segment."""
    words: dict[bytes, tuple[str, ...]] = {}
    for word, types in context.model.type_words.items():
        path = ("type_words", word)
        if not word or ":" in word:
            context.error(
                path, f"{word!r} is not one segment; write the word between two colons", of_key=True
            )
        if not types:
            context.error(path, "no type; name one, such as list")
        words[word.encode()] = tuple(types)
    return words


def _spoken(pattern: KeyPattern, words: Mapping[bytes, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the types that the pattern's literal segments stand for."""
    # A placeholder does not end a word: the segment of `list<id>` is not `list`.
    text = b"".join(part.text if isinstance(part, Literal) else b"<" for part in pattern.parts)
    return types_in(text, words)


def _finished(entry: Entry) -> Entry:
    """Returns the entry with its summary, which is enough to decide most accesses."""
    ttl = entry.ttl
    asks_nothing = ttl is not None and not (ttl.none or ttl.required) and ttl.min is None and ttl.max is None
    on_content = tuple(one.item for one in requirements_of(entry) if one.item in ON_CONTENT)
    fields = entry.fields
    if fields is not None:
        fields = fields._replace(exact=entry.field_case == "exact")
    return replaced(
        entry,
        fields=fields,
        is_plain=not (on_content or entry.types or entry.commands or (ttl and not asks_nothing)),
        on_content=on_content,
    )


def in_outer_scope(asked: Entry, outer: Entry) -> Entry:
    """Returns a scope's requirements, with the commands restricted by the scope around it."""
    if outer.commands is None:
        return asked
    commands = (asked.commands or KeyCommands()).within(outer.commands.without_allow())
    return _finished(dataclasses.replace(asked, commands=commands))


def _has_fields(context: CompilerContext, model: Requirements) -> bool:
    """Whether fields are listed, here or in a scope. A scope may pass `field_case` to its entries."""
    if isinstance(model, ScopeModel):
        return True
    return model.fields is not None or any(one.fields is not None for one in context.model.scopes.values())


def _check_types(context: CompilerContext, model: Requirements, path: tuple[str, ...]) -> None:
    given = " or ".join(model.type)
    for item, holders in _HOLDERS.items():
        if getattr(model, item) is None or not model.type or set(holders) & set(model.type):
            continue
        if item == "fields":
            context.error((*path, item), f"a {given} has no fields; only a hash and a stream have")
        else:
            context.error((*path, item), f"{item} {_is(item)} for the type {' or '.join(holders)}")


def _is(item: str) -> str:
    return "is" if item in ("maxlen", "max_value") else "are"


def _ttl(context: CompilerContext, model: TtlModel | None, path: tuple[str, ...]) -> TtlRule | None:
    if model is None:
        return None
    bounded = model.min is not None or model.max is not None
    if model.none and (bounded or model.default is not None):
        context.error(path, "none excludes min, max and default")
    elif model.none and model.or_none:
        context.error(path, "none excludes or_none: write one of the two")
    elif model.at == "write" and (model.none or model.or_none):
        context.error((*path, "at"), "at: write needs a time to live that is required")
    if model.max == 0:
        context.error((*path, "max"), "no time to live is 0; write a longer one, or take max out")
    if model.min is not None and model.max is not None and model.min > model.max:
        context.error(path, "min is above max: no time to live can fit")
    if model.default is not None and not (model.min or 0) <= model.default <= (model.max or model.default):
        context.error(path, "default is outside min and max")
    if model.grace is not None and model.immediate:
        context.error((*path, "grace"), "immediate and grace exclude each other")
    elif model.grace is not None and not 0 < model.grace <= LONGEST_GRACE:
        context.error((*path, "grace"), f"grace must be above 0 and at most {duration_text(LONGEST_GRACE)}")
    rule = TtlRule(
        none=model.none,
        required=not (model.none or model.or_none),
        min=model.min,
        max=model.max,
        default=model.default,
        at=model.at,
        immediate=model.immediate,
    )
    return rule if model.grace is None else dataclasses.replace(rule, grace=model.grace)


def _scores(context: CompilerContext, model: Requirements, path: tuple[str, ...]) -> NumberRange | None:
    if model.scores is None:
        return None
    try:
        return parse_range(model.scores)
    except ValueError as exc:
        context.error((*path, "scores"), str(exc))
        return None


def _fields(context: CompilerContext, model: Requirements, path: tuple[str, ...]) -> Fields | None:
    if model.fields is None:
        return None
    named: dict[bytes, Form] = {}
    patterned: list[tuple[Form, Form]] = []
    hides_names = False
    for field, spec in model.fields.items():
        at = (*path, "fields", field)
        form = context.form(spec, at)
        if form is None:
            continue
        if field.startswith("<") and field.endswith(">") and field.count("<") == 1:
            of_name = context.form(field, at, of_key=True)
            if of_name is not None:
                patterned.append((of_name, form))
            hides_names = hides_names or field[1:-1] in context.secrets
        elif "<" in field:
            pattern = context.pattern(field, at)
            if pattern is not None:
                patterned.append((Form(pattern.matches, f"of the form {field}", pattern), form))
                hides_names = hides_names or any(hole.name in context.secrets for hole in pattern.holes)
        else:
            named[field.encode()] = form
    folded: dict[bytes, bytes] = {}
    for name in named:
        folded.setdefault(name.lower(), name)
    return Fields(named, tuple(patterned), ", ".join(model.fields), hides_names, folded)
