"""The command log's lines: written from what a command touches, without its values, and read again.

Rule: a line holds no value and no text of a secret placeholder. An example of the placeholder's class
replaces that text, so that the policy still classifies the key as before. Such a line says that it is
*masked*: different commands may have this line, and another policy may answer otherwise to each of them. Of a
value it holds the form (`integer`, `json`), from which `keyfence draft` learns.

Every argument in a line is known by its role, and stands there only if it parses as that: a name is text that
a server takes as a name; a time, a stream's length or a database is an integer that can mean one. A line is
bounded (MAX_NAMES, MAX_TEXT), and so is the time to make it. A line without the whole command says that it is
*cut*; nobody evaluates such a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from keyfence.commands.arguments import integer
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
from keyfence.policy.compiled.scripts import is_named, sha1_of
from keyfence.policy.patterns.value_forms import narrowest_form
from keyfence.policy.show import LAST_DATABASE, LATEST_TIME, LONGEST_TIME, MOST_ENTRIES, printable
from keyfence.policy.wording.masking import fill, shown_in
from keyfence.shapes.secrecy import MASKED

MASK = b"masked"  # stands in each name of which the policy has no example
OMITTED = "?"  # replaces every argument that may be a value
MAX_NAMES = 64  # keys, channels, fields and patterns of a line, and arguments that are shown to people
MAX_NAME = 1024  # bytes of a name that a line has as a whole
MAX_TEXT = 8192  # characters of all names of a line, in JSON
MAX_LINE = 32 * 1024  # bytes of a line in JSON; the limits above keep it below that
_MAX_FIELD = 128  # bytes of a field's name
_MAX_MEMBERS = 32  # elements whose form is looked at
MAX_ARGUMENTS = 1024 * 1024  # of a script's call: Redis 6.2's limit, and keyfence's own by default
# A field's name has the form of one. Other text in its place may be a value that changed places with it.
_FIELD = re.compile(r"""[^\s"'{}\[\]]+""")
_T = TypeVar("_T")


class Recorded(NamedTuple):
    """A command as the log holds it."""

    service: str
    command: str
    argv: list[str]  # for people: keys, times and the like; OMITTED for everything else
    touches: Touches
    times: int  # how many equal commands the line counts, this one included
    has_values: bool  # whether the command wrote values, which the log omits
    is_cut: bool = False  # the line has only a part of the command, so no verdict on it is known
    is_masked: bool = False  # other text replaces some of its names, so it stands for several commands


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
    """Returns a command as plain values for JSON, at most MAX_LINE bytes of it."""
    return _Line(policy).of(service, argv, touches, count)


class _Line:
    """One line while it is written: what of the command is in it so far, and how much room is left."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self._policy = policy
        self._names = MAX_NAMES  # how many more fit
        self._text = MAX_TEXT
        self._is_cut = self._is_masked = False
        self._shown: dict[int, str] = {}  # by position: the arguments that people may see

    def of(self, service: str, argv: Sequence[bytes], touches: Touches, count: int) -> dict[str, Any]:
        command = touches.command
        name = command.name if command is not None else "other"
        if command is not None:
            self._shown.update(enumerate(name.split(" ")))
        accesses = list(self._each(touches.accesses, lambda one: self._access(one, argv)))
        channels = list(self._each(touches.channels, self._channel))
        pattern: list[Any] = []
        if touches.pattern is not None:
            at, glob = touches.pattern.position, self._glob(touches.pattern.glob)
            pattern = [at, glob]
            self._shown.update({at: glob} if at else {})
        line: dict[str, Any] = {
            "service": service,
            "command": name,
            "argv": [],
            "count": count,
            "accesses": accesses,
            "values": any(
                _writes_values(access.content) for access in islice(touches.accesses, len(accesses))
            ),
            "channels": channels,
            "pattern": pattern,
            "script": touches.script and self._script(touches.script),
            "databases": list(self._each(touches.databases, self._database)),
            "problem": touches.problem and self._problem(touches.problem),
            "cut": self._is_cut,
            "masked": self._is_masked,
        }
        line["argv"] = [self._shown.get(at, OMITTED) for at in range(min(len(argv), MAX_NAMES))]
        line["arguments"] = len(argv) if len(argv) > MAX_NAMES else None
        return {name: value for name, value in line.items() if value not in (None, [], False)}

    def _each(self, items: Iterable[_T], take: Callable[[_T], Any]) -> Iterator[Any]:
        """Yields what `take` makes of each item, as long as there is room. The others are cut off."""
        for item in items:
            taken = take(item) if self._names > 0 else None
            if taken is None:
                self._is_cut = True
                return
            yield taken

    def _database(self, one: tuple[int, int]) -> list[int] | None:
        """Returns a database with its position; None if the number can mean none."""
        self._names -= 1
        return list(one) if abs(one[1]) <= LAST_DATABASE else None

    def _takes(self, text: str) -> bool:
        """Makes room for a name. Returns whether there is any."""
        size = len(json.dumps(text))
        if self._names < 1 or size > self._text:
            self._is_cut = True
            return False
        self._names -= 1
        self._text -= size
        return True

    def _name(self, name: bytes, position: int = 0) -> str | None:
        """Returns a key or a channel as the line has it, without secrets; None if there is no room for it.
        People may see it if it has a position."""
        if len(name) > MAX_NAME or isinstance(name, Streamed):
            self._is_cut = True
            text = self._beginning(name[:MAX_NAME])
        else:
            plain = _without_secrets(self._policy, name)
            self._is_masked = self._is_masked or plain != name
            name, text = plain, _text(plain)
        if not self._takes(text):
            return None
        if position:
            shown = printable(name) if len(name) <= MAX_NAME else text
            self._shown[position] = shown if self._takes_more(shown) else OMITTED
        return text

    def _beginning(self, name: bytes) -> str:
        """Returns the beginning of a long name for people. Where a policy has secrets, the end of this
        beginning may be a part of one."""
        return MASKED.decode() if self._policy.secrecy is not None else printable(name)

    def _takes_more(self, text: str) -> bool:
        """Makes room for a name once more, as it is shown. Returns whether there is any."""
        self._text -= len(json.dumps(text))
        return self._text >= 0

    def _glob(self, glob: bytes) -> str:
        """Returns a pattern over names as people may see it."""
        text = shown_in(self._policy, glob[:MAX_NAME], None)
        self._is_cut = self._is_cut or isinstance(glob, Streamed) or not _is_faithful(text)
        return text if self._takes(text) else OMITTED

    def _access(self, access: Access, argv: Sequence[bytes]) -> dict[str, Any] | None:
        key = self._name(access.key, access.position)
        if key is None:
            return None
        line: dict[str, Any] = {"position": access.position, "key": key, "needs": access.needs}
        if access.types:
            line["types"] = list(access.types)
        if access.ttl is not None:
            line["ttl"] = {
                name: value
                for name, value in self._ttl(access.ttl, argv)._asdict().items()
                if value != Ttl._field_defaults.get(name)
            }
        if access.losses:
            line["does"] = access.losses
        if access.content is not None:
            content = self._trimming(access.content, argv)
            line["content"] = self._content(content, self._policy.target(access.key[:MAX_NAME]))
        return line

    def _ttl(self, ttl: Ttl, argv: Sequence[bytes]) -> Ttl:
        """Returns an effect on a time to live, without a time that is none."""
        most = LATEST_TIME if ttl.absolute else LONGEST_TIME
        is_time = self._show_number(ttl.position, argv, ttl.milliseconds, most)
        return ttl if is_time else ttl._replace(milliseconds=None)

    def _trimming(self, content: Content, argv: Sequence[bytes]) -> Content:
        """Returns what is written, without a length of a stream that is none."""
        is_length = self._show_number(content.maxlen_position, argv, content.maxlen, MOST_ENTRIES)
        return content if is_length else content._replace(maxlen=None)

    def _show_number(self, position: int, argv: Sequence[bytes], amount: int | None, most: int) -> bool:
        """Shows the argument at a position that is for a number, if it is one: a client may have confused it
        with the value. Returns False, and cuts the line, if it is more than the number can mean.

        `amount` is the number in the unit of `most`; None: as it stands there.
        """
        number = integer(argv[position]) if 0 < position < len(argv) else None
        if number is None:
            return True
        if abs(number if amount is None else amount) > most:
            self._is_cut = True
            return False
        self._shown[position] = argv[position].decode("ascii")
        return True

    def _content(self, content: Content, target: Target | None) -> dict[str, Any]:
        fields = list(self._each(content.fields, lambda field: self._field(field, target)))
        line: dict[str, Any] = {
            "fields": fields,
            "stream": [content.maxlen, content.maxlen_approximate, content.maxlen_position]
            if content.stream_add
            else None,
        }
        line.update(_forms(content, len(fields)))
        if content.carried is not None:
            keys = list(self._each(content.carried.keys, self._name))
            line["carried"] = content.carried._asdict() | {"keys": keys}
        return line

    def _field(self, field: Field, target: Target | None) -> list[Any] | None:
        fields = target.entry.fields if target is not None and target.entry is not None else None
        if fields is not None and fields.hides_names and field.name not in fields.named:
            text, self._is_masked = MASKED.decode(), True
        else:
            text = _text(field.name[: _MAX_FIELD + 1])
            if len(field.name) > _MAX_FIELD or not text.isprintable() or not _FIELD.fullmatch(text):
                self._is_cut = True
                text = OMITTED
        return [field.position, text] if self._takes(text) else None

    def _channel(self, channel: Channel) -> list[Any] | None:
        name = self._name(channel.name, channel.position)
        return None if name is None else [channel.position, name, channel.publish, channel.is_pattern]

    def _script(self, script: Script) -> list[Any]:
        return [
            script.kind if script.kind == "function" else "sha1",
            script.position,
            self._script_name(script),
            list(self._each(script.keys, self._name)),
            len(script.args),
        ]

    def _script_name(self, script: Script) -> str:
        if script.kind == "text":
            return sha1_of(script).decode()
        if not is_named(script):
            return OMITTED
        if self._policy.registration(script):
            return printable(script.name)
        shown = shown_in(self._policy, script.name, None)
        self._is_masked = self._is_masked or shown != printable(script.name)
        return shown

    def _problem(self, problem: Problem) -> list[Any]:
        unseen = list(self._each(problem.unseen, lambda one: [self._glob(one.glob), one.needs]))
        return [problem.rule, problem.position, problem.reason, *([unseen] if unseen else [])]


def _is_faithful(glob: str) -> bool:
    """Returns whether a pattern stands in a line as it was sent: neither cut nor masked nor escaped."""
    return not (glob.endswith("…") or "\\" in glob or MASKED.decode() in glob)


def _without_secrets(policy: CompiledPolicy, key: bytes) -> bytes:
    target = policy.target(key)
    if target is None or target.kind not in ("entry", "legacy") or not target.secrets:
        shown = shown_in(policy, key, target)
        return key if shown == printable(key) else _of_the_same_kind(policy, shown.encode(), key, target)
    captured = target.pattern.capture(key) or {}
    examples = {
        hole.name: hole.expression.example(1) for hole in target.pattern.holes if hole.name in target.secrets
    }
    return fill(target.pattern, captured | examples)


def _of_the_same_kind(policy: CompiledPolicy, shown: bytes, name: bytes, target: Target | None) -> bytes:
    """Returns a masked name without the mask's special characters, if the policy still classifies it as
    before, as a key and as a channel.

    Such a name breaks fewer naming rules.
    """
    plain, channel = shown.replace(MASKED, MASK), policy.channel_classifier.first
    return plain if policy.target(plain) is target and channel(plain) == channel(name) else shown


def keeps_its_kind(name: bytes) -> bool:
    """Whether a line's name is classified as the one that was sent, though parts of it may be masked."""
    return MASKED not in name


def _forms(content: Content, fields: int) -> dict[str, Any]:
    """Returns the forms of what a command writes: of this number of fields, or of the value or its
    elements."""
    if content.fields:
        first = islice(content.fields, fields)
        return {"forms": [_form(one.value) if one.value_position else None for one in first]}
    if content.value_position:
        return {"form": _form(content.value or b"")}
    if content.members is not None:
        forms = {_form(value) for value in islice(content.members.values, _MAX_MEMBERS)}
        return {"form": forms.pop() if len(forms) == 1 else ""}
    return {}


def _form(value: bytes) -> str:
    return "" if isinstance(value, Streamed) else narrowest_form(value)


def _read_problem(rule: str, position: int, reason: str, unseen: Sequence[Any] = ()) -> Problem:
    return Problem(rule, position, reason, tuple(Unseen(_bytes(glob), int(needs)) for glob, needs in unseen))


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
    # Older lines do not say that a pattern is not the whole one.
    globs = [one.glob for one in (touches.problem.unseen if touches.problem is not None else ())]
    globs += [touches.pattern.glob] if touches.pattern is not None else []
    return Recorded(
        str(line["service"]),
        str(name),
        argv,
        touches,
        int(line["count"]),
        bool(line.get("values")),
        bool(line.get("cut")) or not all(_is_faithful(_text(glob)) for glob in globs),
        bool(line.get("masked")),
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
