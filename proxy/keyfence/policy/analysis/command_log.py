"""The command log's lines: written from what a command touches, without its values, and read again.

Rule: a line holds no value and no text of a secret placeholder. An example of the placeholder's class
replaces that text, so that the policy still classifies the key as before. Of a value it holds the form
(`integer`, `json`), from which `keyfence draft` learns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from keyfence.commands.model import (
    Access,
    Carried,
    Channel,
    Content,
    Field,
    Pattern,
    Problem,
    Script,
    Streamed,
    Touches,
    Ttl,
    Unseen,
)
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.scripts import sha1_of
from keyfence.policy.patterns.value_forms import narrowest_form
from keyfence.policy.show import printable
from keyfence.policy.wording.masking import fill, shown_in
from keyfence.shapes.secrecy import MASKED

OMITTED = "?"  # replaces every argument that may be a value
_MAX_MEMBERS = 100  # elements whose form is looked at
MAX_ARGUMENTS = 1024 * 1024  # of a script's call: Redis 6.2's limit, and keyfence's own by default


class Recorded(NamedTuple):
    """A command as the log holds it."""

    service: str
    command: str
    argv: list[str]  # for people: keys, times and the like; OMITTED for everything else
    touches: Touches
    times: int  # how many equal commands the line counts, this one included
    has_values: bool  # whether the command wrote values, which the log omits


def feed_lines(
    lines: Iterable[bytes],
    take: Callable[[dict[str, Any]], None],
    complain: Callable[[int, Exception], None],
) -> None:
    """Passes each line of a log to `take`. Calls `complain`, with the line's number, for a line that is not a
    JSON object, or that `take` rejects with a ValueError."""
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError("expected an object")
            take(line)
        except (ValueError, RecursionError) as fault:
            complain(number, fault)


def as_line(
    policy: CompiledPolicy, service: str, argv: Sequence[bytes], touches: Touches, count: int
) -> dict[str, Any]:
    """Returns a command as plain values for JSON."""
    command = touches.command
    name = command.name if command is not None else "other"
    accesses = [access._replace(key=_without_secrets(policy, access.key)) for access in touches.accesses]
    script = touches.script
    line: dict[str, Any] = {
        "service": service,
        "command": name,
        "argv": _safe_argv(policy, name, argv, touches, accesses),
        "count": count,
        "accesses": [_access(policy, access) for access in accesses],
        "values": any(_writes_values(access.content) for access in accesses),
        "channels": [
            [one.position, _text(_without_secrets(policy, one.name)), one.publish, one.is_pattern]
            for one in touches.channels
        ],
        "pattern": touches.pattern
        and [touches.pattern.position, shown_in(policy, touches.pattern.glob, None)],
        "script": script
        and [
            script.kind if script.kind == "function" else "sha1",
            script.position,
            _script_name(policy, script),
            [_text(_without_secrets(policy, key)) for key in script.keys],
            len(script.args),
        ],
        "databases": [list(one) for one in touches.databases],
        "problem": touches.problem and _problem(policy, touches.problem),
    }
    return {name: value for name, value in line.items() if value not in (None, [], False)}


def _script_name(policy: CompiledPolicy, script: Script) -> str:
    if script.kind == "text":
        return sha1_of(script).decode()
    return printable(script.name) if policy.registration(script) else shown_in(policy, script.name, None)


def _without_secrets(policy: CompiledPolicy, key: bytes) -> bytes:
    target = policy.target(key)
    if target is None or target.kind not in ("entry", "legacy") or not target.secrets:
        shown = shown_in(policy, key, target)
        return key if shown == printable(key) else _of_the_same_kind(policy, shown.encode(), target)
    captured = target.pattern.capture(key) or {}
    examples = {
        hole.name: hole.expression.example(1) for hole in target.pattern.holes if hole.name in target.secrets
    }
    return fill(target.pattern, captured | examples)


def _of_the_same_kind(policy: CompiledPolicy, shown: bytes, target: Target | None) -> bytes:
    """Returns a masked key without the mask's special characters, if the policy still classifies it as
    before.

    Such a key breaks fewer naming rules.
    """
    plain = shown.replace(MASKED, b"masked")
    return plain if policy.target(plain) is target else shown


def _safe_argv(
    policy: CompiledPolicy, name: str, argv: Sequence[bytes], touches: Touches, accesses: Sequence[Access]
) -> list[str]:
    """Returns the arguments, with OMITTED for each that may be a value.

    Names, keys, channels, times and lengths cannot be values.
    """
    shown = dict(enumerate(name.split(" "))) if name != "other" else {}
    for access in accesses:
        shown[access.position] = printable(access.key)
        for at in (
            access.ttl.position if access.ttl else 0,
            access.content.maxlen_position if access.content else 0,
        ):
            if 0 < at < len(argv):
                shown[at] = printable(argv[at], 32)
    for channel in touches.channels:
        shown[channel.position] = printable(_without_secrets(policy, channel.name))
    if touches.pattern is not None and touches.pattern.position:
        shown[touches.pattern.position] = shown_in(policy, touches.pattern.glob, None)
    return [shown.get(at, OMITTED) for at in range(min(len(argv), 64))]


def _access(policy: CompiledPolicy, access: Access) -> dict[str, Any]:
    target = policy.target(access.key)
    line: dict[str, Any] = {"position": access.position, "key": _text(access.key), "needs": access.needs}
    if access.types:
        line["types"] = list(access.types)
    if access.ttl is not None:
        line["ttl"] = {
            name: value
            for name, value in access.ttl._asdict().items()
            if value != Ttl._field_defaults.get(name)
        }
    if access.losses:
        line["does"] = access.losses
    content = access.content
    if content is not None:
        line["content"] = {
            "fields": [[one.position, _text(_field_name(one, target))] for one in content.fields],
            "stream": [content.maxlen, content.maxlen_approximate, content.maxlen_position]
            if content.stream_add
            else None,
        }
        line["content"].update(_forms(content))
        if content.carried is not None:
            keys = [_text(_without_secrets(policy, key)) for key in content.carried.keys]
            line["content"]["carried"] = content.carried._asdict() | {"keys": keys}
    return line


def _forms(content: Content) -> dict[str, Any]:
    """Returns the forms of what a command writes: of each field, or of the value or its elements."""
    if content.fields:
        return {"forms": [_form(one.value) if one.value_position else None for one in content.fields]}
    if content.value_position:
        return {"form": _form(content.value or b"")}
    if content.members is not None:
        forms = {_form(value) for value in islice(content.members.values, _MAX_MEMBERS)}
        return {"form": forms.pop() if len(forms) == 1 else ""}
    return {}


def _form(value: bytes) -> str:
    return "" if isinstance(value, Streamed) else narrowest_form(value)


def _problem(policy: CompiledPolicy, problem: Problem) -> list[Any]:
    unseen = [[shown_in(policy, one.glob, None), one.needs] for one in problem.unseen]
    return [problem.rule, problem.position, problem.reason, *([unseen] if unseen else [])]


def _read_problem(rule: str, position: int, reason: str, unseen: Sequence[Any] = ()) -> Problem:
    return Problem(rule, position, reason, tuple(Unseen(_bytes(glob), int(needs)) for glob, needs in unseen))


def _field_name(field: Field, target: Target | None) -> bytes:
    fields = target.entry.fields if target is not None and target.entry is not None else None
    if fields is not None and fields.hides_names and field.name not in fields.named:
        return b"<masked>"
    return field.name[:256]


def _writes_values(content: Content | None) -> bool:
    """Returns whether a command writes anything that its line leaves out."""
    if content is None:
        return False
    kept = content._replace(
        fields=(),
        stream_add=False,
        maxlen=None,
        maxlen_approximate=False,
        maxlen_position=0,
        carried=None,
    )
    return kept != Content() or any(field.value_position for field in content.fields)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not text")
    return text.encode("utf-8", "surrogateescape")


def from_line(line: Mapping[str, Any]) -> Recorded:
    """Reads a line back. Raises ValueError if it is not a line of a command log."""
    try:
        return _from_line(line)
    except (KeyError, TypeError, IndexError, AttributeError, UnicodeEncodeError) as exc:
        raise ValueError(f"this is not a line of a command log ({type(exc).__name__}: {exc})") from None


def _from_line(line: Mapping[str, Any]) -> Recorded:
    name = line["command"]
    pattern, script, problem = line.get("pattern"), line.get("script"), line.get("problem")
    touches = Touches(
        command=_command_named(name),
        accesses=tuple(map(_read_access, line.get("accesses", []))),
        channels=tuple(
            Channel(at, _bytes(text), bool(pub), bool(is_p))
            for at, text, pub, is_p in line.get("channels", [])
        ),
        pattern=Pattern(pattern[0], _bytes(pattern[1])) if pattern else None,
        script=_read_script(*script) if script else None,
        databases=tuple((at, number) for at, number in line.get("databases", [])),
        problem=_read_problem(*problem) if problem else None,
    )
    argv = [str(one) for one in line["argv"]]
    return Recorded(
        str(line["service"]), str(name), argv, touches, int(line["count"]), bool(line.get("values"))
    )


def _read_script(kind: Any, position: int, name: str, keys: Sequence[str], arguments: int) -> Script:
    """Reads a script's call. The log has only the number of its arguments, so each one becomes OMITTED."""
    if not 0 <= arguments <= MAX_ARGUMENTS:
        raise ValueError(
            f"a script's call has {arguments} arguments; a command log has at most {MAX_ARGUMENTS}"
        )
    return Script(kind, position, _bytes(name), tuple(map(_bytes, keys)), (OMITTED.encode(),) * arguments)


def _command_named(name: str) -> Any:
    container, _, subcommand = name.partition(" ")
    row = COMMANDS.get(container.encode())
    if row is not None and subcommand:
        row = row.subcommands.get(subcommand.encode()) or COMMANDS.get(name.encode()) or row
    return row.command if row is not None else None


def _read_access(line: Mapping[str, Any]) -> Access:
    content = line.get("content")
    return Access(
        position=int(line["position"]),
        key=_bytes(line["key"]),
        needs=int(line["needs"]),
        types=tuple(line.get("types", [])),
        ttl=Ttl(**line["ttl"]) if line.get("ttl") else None,
        content=_read_content(content) if content else None,
        losses=int(line.get("does", 0)),
    )


def _read_content(line: Mapping[str, Any]) -> Content:
    """Reads the fields, the stream trimming and the carried value that the log keeps of a content."""
    fields = tuple(Field(at, _bytes(name), 0, b"") for at, name in line.get("fields", []))
    stream, carried = line.get("stream"), line.get("carried")
    if carried:
        keys = tuple(map(_bytes, carried["keys"]))
        return Content(carried=Carried(**{**carried, "keys": keys, "types": tuple(carried["types"])}))
    if not stream:
        return Content(fields=fields)
    maxlen, approximate, position = stream
    return Content(
        fields=fields,
        stream_add=True,
        maxlen=maxlen,
        maxlen_approximate=bool(approximate),
        maxlen_position=position,
    )
