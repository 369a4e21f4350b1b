"""The pydantic models of a policy file: every key that the file may have, and the form of its value.

Rule: these models say what is *well formed*. The compiler and `check` find names that refer to nothing and
entries that contradict each other.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
)

from keyfence.policy.rules import RULES
from keyfence.policy.units import milliseconds, size_bytes

from .validate import file_kind


def one_as_list(value: Any) -> Any:
    """Accepts a single text in place of a list of one."""
    return [value] if isinstance(value, str) else value


def _duration(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a duration such as 60s")
    return milliseconds(value)


def _size(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a size such as 64kb")
    return size_bytes(value)


def _yes_or_no(value: Any) -> Any:
    if value in ("true", "yes"):
        return True
    if value in ("false", "no"):
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def _date(value: Any) -> Any:
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a date; write it as 2027-06-30") from None


def _rule(value: str) -> str:
    if value not in RULES:
        from keyfence.policy.diagnostics import did_you_mean

        raise ValueError(f"{value!r} is not a rule{did_you_mean(value, RULES)}")
    return value


class Length(NamedTuple):
    """The greatest length of a key."""

    most: int
    characters: bool = False  # counted as UTF-8 characters; else in bytes

    @property
    def unit(self) -> str:
        return "characters" if self.characters else "bytes"

    def of(self, key: bytes) -> int:
        """Returns the key's length in this unit. A byte that is not part of UTF-8 text counts as a
        character."""
        return len(key.decode("utf-8", "surrogateescape")) if self.characters else len(key)


_LENGTH = re.compile(r"([1-9][0-9]{0,8})(?: (bytes|characters))?", re.ASCII)


def _length(value: Any) -> Length:
    match = _LENGTH.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"{value!r} is not a length; write a number of bytes (128) or of characters (128 characters)"
        )
    return Length(int(match[1]), match[2] == "characters")


LengthText = Annotated[
    Length,
    PlainValidator(_length),
    WithJsonSchema({"type": ["string", "integer"], "pattern": f"^{_LENGTH.pattern}$"}),
]
Names = Annotated[list[str], BeforeValidator(one_as_list)]
Duration = Annotated[int, BeforeValidator(_duration)]  # milliseconds
Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]  # bytes
Count = Annotated[int, Field(ge=1, le=2**32 - 1)]
Flag = Annotated[bool, BeforeValidator(_yes_or_no)]
Date = Annotated[datetime.date, BeforeValidator(_date)]
RuleName = Annotated[str, AfterValidator(_rule)]
# Whether a key must, or may, have one pair of braces that is not empty.
HashTag = Literal["required", "optional", "any"]
ValueType = Literal[
    "string", "hash", "list", "set", "zset", "stream", "array", "vectorset",
    "json", "bloom", "cuckoo", "cms", "topk", "tdigest", "timeseries",
]  # fmt: skip
# The form of a value: a class expression, a built-in class, a <placeholder>, or a list of words.
Form = str | list[str]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def mapping_or(field: str) -> Any:
    """Accepts plain text in place of a mapping: it is the value of one field."""
    return BeforeValidator(lambda value: {field: value} if isinstance(value, str) else value)


_PAGE = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[!#-&(-;=?-~]*)?")


def _page(value: str) -> str:
    """Checks the address of a page. Browsers follow it, so it must not be a script."""
    if value and not _PAGE.fullmatch(value):
        raise ValueError(f"{value!r} is not the address of a page; write it as https://HOST/PATH")
    return value


Page = Annotated[str, AfterValidator(_page)]


class Owner(_Model):
    """The owner of the policy. Every refusal names the `contact`, and links to the convention at `docs`."""

    team: str = ""
    contact: str = ""
    docs: Page = ""  # the page that `keyfence export docs` wrote


class PlaceholderModel(_Model):
    """The values that `<name>` in a pattern may take."""

    is_: str = Field(alias="is")
    secret: Flag = False  # masked in every log and report
    secret_from: Annotated[int, Field(ge=1)] = 1  # shorter values are not masked, unless they match a form


_TTL_WORDS = {"none": {"none": "true"}, "any": {"or_none": "true"}, "required": {"at": "refresh"}}


def _ttl(value: Any) -> Any:
    if isinstance(value, str) and value not in _TTL_WORDS:
        raise ValueError(
            f"{value!r}: write none, required, any, or a mapping such as {{default: 60s, max: 1h}}"
        )
    return _TTL_WORDS[value] if isinstance(value, str) else value


class TtlModel(_Model):
    """The time to live that a key must end up with. Without `none` and `or_none` it must have one."""

    none: Flag = False  # it must not have one
    or_none: Flag = False  # it may have none
    min: Duration | None = None
    max: Duration | None = None
    default: Duration | None = None  # the owner's own time; hints name it and nothing checks it
    at: Literal["write", "refresh"] = "refresh"  # write: the writing command itself must set it
    immediate: Flag = False  # no question is left for later
    grace: Duration | None = None  # for how long a later command may set it; default 5s


class Rights(_Model):
    """Who may do what. Writers may also read; consumers may read, and change the state of consumer groups."""

    writers: Names = []
    readers: Names = []
    consumers: Names = []
    deny_write: Names = []
    deny_read: Names = []


# What no command may do to a key.
Loss = Literal["delete", "replace", "remove"]


class KeyCommandsModel(_Model):
    """The commands (by name or @category) that any service may use on keys."""

    forbid: Names = []
    allow: Names | None = None  # only these
    never: Annotated[list[Loss], BeforeValidator(one_as_list)] = []


class Requirements(_Model):
    """Requirements on a key: on the commands that use it, on its value and on its time to live."""

    commands: KeyCommandsModel | None = None

    type: Annotated[list[ValueType], BeforeValidator(one_as_list)] = []
    ttl: Annotated[TtlModel | None, BeforeValidator(_ttl)] = None
    fields: dict[str, Form] | None = None  # of a hash or stream, by name or pattern
    # A field that differs from a listed one only in case is a violation, even under `should`.
    field_case: Literal["exact"] | None = None
    values: Form | None = None  # of a string
    members: Form | None = None  # of a set, list or sorted set
    scores: str | None = None  # of a sorted set, as 0..100
    maxlen: Annotated[str | None, Field(pattern=r"^~?[0-9]{1,18}$")] = None  # of a stream
    max_length: LengthText | None = None  # of the whole key
    max_value: Size | None = None  # of a string, and of each field's value and each element
    max_fields: Count | None = None  # of a hash, and of each entry of a stream
    max_members: Count | None = None  # elements of a list, set or sorted set, entries of a stream


# What a script that is not registered may do: run, authorized by the keys that it declares; the same, as a
# finding that never refuses; be loaded but not run; neither. The words are in order, the most lenient first.
UnregisteredScripts = Literal["declared", "report", "load_only", "forbid"]


def _unregistered_scripts(value: Any) -> Any:
    if value == "allow":
        raise ValueError(
            "write declared or report, not allow; an unregistered script is then authorized by the keys that "
            "it declares, and can still touch any other key"
        )
    return value


UnregisteredWord = Annotated[UnregisteredScripts, BeforeValidator(_unregistered_scripts)]


class UnregisteredModel(_Model):
    """What scripts that are not registered may do. A service may have a word of its own."""

    default: UnregisteredWord = "load_only"
    services: dict[str, UnregisteredWord] = {}


class ScopeModel(Rights, Requirements):
    """A part of the key space under one prefix, with its rights."""

    prefix: str
    written_by: Names = []  # scripts and functions; nothing else may write here
    unregistered: Literal["forbid", "allow"] = "forbid"  # keys that no entry covers
    unregistered_scripts: UnregisteredWord | None = None  # those that declare these keys
    hash_tag: HashTag | None = None  # for keys under the prefix, unless their entry sets its own
    should: list[RuleName] = []  # rules that never refuse keys under the prefix, only report them


class EntryModel(Rights, Requirements):
    """One kind of key: a row in the table of keys that the policy stands for."""

    key: str
    about: str = ""
    written_by: Names = []  # scripts and functions; nothing else may write here
    replaces: str = ""  # the entry that this one is the next version of
    allow: list[Literal["read", "delete", "write"]] = ["read", "delete"]  # on the replaced entry's keys
    hash_tag: HashTag | None = None
    should: list[RuleName] = []  # rules that never refuse these keys, only report them


OnExpiry = Literal["report", "refuse"]


class LegacyKeyModel(_Model):
    """One deprecated form. Its section gives the values that the form does not set."""

    entry: str  # the entry that replaces it
    member: dict[str, str] = {}  # the member of a family, as {stage: dev}; `scope` stands for <scope>
    allow: list[Literal["read", "delete", "write"]] | None = None
    services: Names | None = None
    until: Date | None = None
    on_expiry: OnExpiry | None = None
    owner: str = ""
    about: str = ""


class LegacyModel(_Model):
    """Deprecated key forms, each with the entry that replaces it."""

    allow: list[Literal["read", "delete", "write"]] = []  # the rights that remain; [] is none
    services: Names | None = None  # only these; default: all services that have the entry's rights
    until: Date | None = None
    on_expiry: OnExpiry = "report"  # refuse: after the last day nothing is allowed
    owner: str = ""
    keys: dict[str, Annotated[LegacyKeyModel, mapping_or("entry")]] = {}


class GrantModel(_Model):
    """Commands (by name, @category or `*`) that a service may use beyond its rights, and on which keys."""

    commands: Names
    keys: Names = []  # globs, or the word legacy: the keys that these commands may use
    channels: Names = []  # globs: the channels that they may use
    until: Date | None = None
    on_expiry: OnExpiry = "report"
    owner: str = ""
    reason: str = ""


class ChannelModel(_Model):
    """A Pub/Sub channel, or a family of channels, with its publishers and subscribers."""

    channel: str
    about: str = ""
    publishers: Names = []
    subscribers: Names = []
    written_by: Names = []  # scripts and functions; nothing else may publish here


def _keys_of_script(value: Any) -> Any:
    if isinstance(value, str) and value != "any":
        if not value.isascii() or not value.isdigit() or len(value) > 4:
            raise ValueError(
                f"{value!r}: write the number of keys that it declares, any, or a list of their patterns"
            )
        return int(value)
    return value


class TouchModel(_Model):
    """A key that a script touches, and what the script does to it."""

    key: str  # a template over KEYS, ARGV and the placeholders of the declared keys
    type: Annotated[list[ValueType], BeforeValidator(one_as_list)] = []
    # The time to live that it gives the key: 30s, <ARGV.1>s or <ARGV.1>ms; a negative argument means none.
    ttl: str = ""
    commands: Names = []  # the commands that it runs on this key; default: those of the script


Touched = Annotated[
    list[Annotated[TouchModel, mapping_or("key")]],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
]


class FunctionModel(_Model):
    """The keys that a library's function touches: its declared keys, and templates over KEYS and ARGV."""

    about: str = ""
    # The number of keys that a call declares (or any), or a pattern for each; templates may use its
    # placeholders.
    keys: Annotated[int | Literal["any"] | list[str], BeforeValidator(_keys_of_script)] = 0
    declared: Literal["both", "read", "write", "none"] | None = None  # how it uses the declared keys
    reads: Touched = []
    writes: Touched = []
    publishes: Names = []
    commands: Names = []  # the commands that it runs on its keys; needed if an entry restricts them
    # Clients cannot shape its replies and error texts, so it may run on a connection that clients share.
    shared: Flag = False


class ScriptModel(FunctionModel):
    """A registered Lua script. The SHA-1 of its text identifies it."""

    sha1: Names = []  # 40 hex digits, or at least the first eight and ...
    source: str = ""  # the file with its text, relative to the policy file
    library: str = ""  # instead: all scripts of a library that keyfence knows
    versions: Names = []  # of the library, as 5 or 5.81; default: all that keyfence knows
    prefix: Names = []  # of the library's keys; a call touches keys with the prefix of those that it declares


class CommandsModel(_Model):
    """Commands (by name or @category) that the policy forbids or allows for all services."""

    forbid: Names = []
    allow: Names = []  # `*` is every command that is not forbidden here


class CallerModel(_Model):
    """A placeholder whose value depends on the client."""

    from_: Literal["user", "certificate"] = Field(alias="from")  # whose name has the value
    pattern: str = "(.*)"  # the form of the name; its one group is the value
    across: Names = []  # services whose rights cover the keys of all values


def _binding(value: Any) -> str:
    """Returns the tag of the form in which a binding is written."""
    if isinstance(value, dict) and isinstance(value.get("from"), str):
        return "(caller)"
    if isinstance(value, dict) and isinstance(value.get("write"), dict):
        return "(write)"
    return "(services)"


_Caller = Annotated[CallerModel, Tag("(caller)")]
_Services = Annotated[dict[str, Names], Tag("(services)")]  # service: its values


class WriteModel(_Model):
    """A placeholder that binds writing only."""

    write: Annotated[_Caller | _Services, Discriminator(_binding)]


# Who owns the values of a placeholder.
Binding = Annotated[
    _Caller | Annotated[WriteModel, Tag("(write)")] | _Services,
    Discriminator(_binding),
]


class LevelsModel(_Model):
    """How many levels a name has, separated by `:`."""

    min: Annotated[int | None, Field(ge=1, le=64)] = None  # then no level may be empty
    max: Annotated[int | None, Field(ge=1, le=64)] = None


class NameRules(_Model):
    """Requirements on a key's name."""

    max_length: LengthText | None = None
    charset: str | None = None  # a class for one byte, as [a-z0-9:_]
    lowercase: Flag = False  # no A to Z
    levels: LevelsModel | None = None
    level: str | None = None  # the class of each level
    after: dict[str, str] = {}  # {level: class of the level after it}, as {date: date}
    avoid: dict[str, str] = {}  # {abbreviation: what to write instead}
    hash_tag: HashTag | None = None


class NamesModel(NameRules):
    """The naming rules for every key in the policy's claims, of any kind except legacy forms."""

    should: NameRules = NameRules()  # these never refuse, only report


@file_kind("a policy, which --policy names")
class PolicyModel(Rights):
    """A policy file. Its own rights are those of entries that are in no scope and set no rights."""

    policy: str
    about: str = ""
    owner: Owner = Owner()
    claims: Names = []
    delegates: Names = []  # the claims that files of other teams have inside these
    services: list[str] = []  # the file may also name those of other files in its folder
    databases: list[Annotated[int, Field(ge=0)]] | None = None
    should: list[RuleName] = []
    placeholders: dict[str, Annotated[PlaceholderModel, mapping_or("is")]] = {}
    bind: dict[str, Binding] = {}  # placeholder: {service: values}, or where to find a client's value
    # Segments that give the type of a key, as {list: list, zset: zset}.
    type_words: dict[str, Annotated[list[ValueType], BeforeValidator(one_as_list)]] = {}
    scopes: dict[str, ScopeModel] = {}
    keys: dict[str, EntryModel] = {}
    legacy: LegacyModel = LegacyModel()
    instead: dict[str, str] = {}  # wrong forms that are in use, with the entry to use instead
    channels: dict[str, ChannelModel] = {}
    scripts: dict[str, ScriptModel] = {}
    functions: dict[str, FunctionModel] = {}
    unregistered_scripts: Annotated[UnregisteredModel, mapping_or("default")] = UnregisteredModel()
    cluster: Flag = False  # the keys of a command, and of a transaction, must share a hash slot
    commands: CommandsModel = CommandsModel()
    grants: dict[str, GrantModel] = {}
    names: NamesModel = NamesModel()
