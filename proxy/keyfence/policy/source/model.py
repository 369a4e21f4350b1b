"""The policy file's shape, as pydantic models: every key that may stand in it and the form of its value.

Rule: these models say what is *well formed*; whether names refer to something, and whether entries contradict
each other, is for `compile` and `check`, which know the positions.
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


def _as_list(value: Any) -> Any:
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
        raise ValueError(f"{value!r} is no date; write it as 2027-06-30") from None


def _rule(value: str) -> str:
    if value not in RULES:
        from keyfence.policy.diagnostics import did_you_mean

        raise ValueError(f"{value!r} is no rule{did_you_mean(value, RULES)}")
    return value


class Length(NamedTuple):
    """How long a key may be."""

    most: int
    characters: bool = False  # counted as UTF-8 characters; else in bytes

    @property
    def unit(self) -> str:
        return "characters" if self.characters else "bytes"

    def of(self, key: bytes) -> int:
        """The key's length in this unit. A byte that is no UTF-8 counts as a character."""
        return len(key.decode("utf-8", "surrogateescape")) if self.characters else len(key)


_LENGTH = re.compile(r"([1-9][0-9]{0,8})(?: (bytes|characters))?", re.ASCII)


def _length(value: Any) -> Length:
    match = _LENGTH.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no length; write a number of bytes, as 128, or 128 characters")
    return Length(int(match[1]), match[2] == "characters")


LengthText = Annotated[
    Length,
    PlainValidator(_length),
    WithJsonSchema({"type": ["string", "integer"], "pattern": f"^{_LENGTH.pattern}$"}),
]
Names = Annotated[list[str], BeforeValidator(_as_list)]
Duration = Annotated[int, BeforeValidator(_duration)]  # milliseconds
Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]  # bytes
Count = Annotated[int, Field(ge=1, le=2**32 - 1)]
Flag = Annotated[bool, BeforeValidator(_yes_or_no)]
Date = Annotated[datetime.date, BeforeValidator(_date)]
RuleName = Annotated[str, AfterValidator(_rule)]
# Whether a key must have one pair of braces that isn't empty, or may.
HashTag = Literal["required", "optional", "any"]
ValueType = Literal[
    "string", "hash", "list", "set", "zset", "stream", "array", "vectorset",
    "json", "bloom", "cuckoo", "cms", "topk", "tdigest", "timeseries",
]  # fmt: skip
# A form that a value must have: a class expression, a built-in class or <placeholder>, or a list of words.
Form = str | list[str]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _mapping_or(word: str, field: str) -> Any:
    """A plain text in place of a mapping stands for its one field."""

    def convert(value: Any) -> Any:
        return {field: value} if isinstance(value, str) else value

    convert.__doc__ = word
    return convert


class Owner(_Model):
    """Who answers for the policy; `contact` stands in every refusal."""

    team: str = ""
    contact: str = ""


class PlaceholderModel(_Model):
    """What `<name>` in a pattern may hold."""

    is_: str = Field(alias="is")
    secret: Flag = False  # masked in every log and report
    secret_from: Annotated[int, Field(ge=1)] = 1  # shorter values keep no secret, where they fit no form


_TTL_WORDS = {"none": {"none": "true"}, "any": {"or_none": "true"}, "required": {"at": "refresh"}}


def _ttl(value: Any) -> Any:
    if isinstance(value, str) and value not in _TTL_WORDS:
        raise ValueError(
            f"{value!r}: write none, required, any, or a mapping such as {{default: 60s, max: 1h}}"
        )
    return _TTL_WORDS[value] if isinstance(value, str) else value


class TtlModel(_Model):
    """What time to live a key must end up with. Without `none` and `or_none` it must have one."""

    none: Flag = False  # it must not have one
    or_none: Flag = False  # it may have none
    min: Duration | None = None
    max: Duration | None = None
    default: Duration | None = None  # what the owner sets; told in hints, not checked
    at: Literal["write", "refresh"] = "refresh"  # write: the writing command itself must bring it
    immediate: Flag = False  # nothing is left to be found late
    grace: Duration | None = None  # so long after a write may what it left open come; 5s if nothing is said


class Rights(_Model):
    """Who may do what. Writers may read; consumers read and keep a consumer group's books."""

    writers: Names = []
    readers: Names = []
    consumers: Names = []
    deny_write: Names = []
    deny_read: Names = []


# What must never become of a key, whichever command does it.
Loss = Literal["delete", "replace", "remove"]


class KeyCommandsModel(_Model):
    """Which commands (by name or @category) may be used on keys, whoever uses them."""

    forbid: Names = []
    allow: Names | None = None  # only these
    never: Annotated[list[Loss], BeforeValidator(_as_list)] = []


class Requirements(_Model):
    """What is asked of the commands on a key, of its value, and of its time to live."""

    commands: KeyCommandsModel | None = None

    type: Annotated[list[ValueType], BeforeValidator(_as_list)] = []
    ttl: Annotated[TtlModel | None, BeforeValidator(_ttl)] = None
    fields: dict[str, Form] | None = None  # of a hash or stream, by name or pattern
    # A field that differs from a listed one only in case is refused, whatever `should` says.
    field_case: Literal["exact"] | None = None
    values: Form | None = None  # of a string
    members: Form | None = None  # of a set, list or sorted set
    scores: str | None = None  # of a sorted set, as 0..100
    maxlen: Annotated[str | None, Field(pattern=r"^~?[0-9]{1,18}$")] = None  # of a stream
    max_length: LengthText | None = None  # of the whole key
    max_value: Size | None = None  # of a string, and of each field's value and each element
    max_fields: Count | None = None  # of a hash, and of each entry of a stream
    max_members: Count | None = None  # elements of a list, set or sorted set, entries of a stream


class ScopeModel(Rights, Requirements):
    """A part of the key space under one prefix, and whose it is."""

    prefix: str
    written_by: Names = []  # scripts and functions; nothing else may write here
    unregistered: Literal["forbid", "allow"] = "forbid"  # keys that no entry of the catalogue covers
    hash_tag: HashTag | None = None  # of all keys under the prefix, where their entry says nothing else
    should: list[RuleName] = []  # rules that are told and never refused, for all keys under the prefix


class EntryModel(Rights, Requirements):
    """One kind of key: a row of the document's catalogue."""

    key: str
    about: str = ""
    written_by: Names = []  # scripts and functions; nothing else may write here
    replaces: str = ""  # the entry of which this is the next version,
    allow: list[Literal["read", "delete", "write"]] = ["read", "delete"]  # and what may still be done with it
    hash_tag: HashTag | None = None
    should: list[RuleName] = []  # rules that are told and never refused, for these keys


OnExpiry = Literal["report", "refuse"]


class LegacyKeyModel(_Model):
    """One deprecated form. What it doesn't say is as its section says."""

    entry: str  # the entry that replaces it
    member: dict[str, str] = {}  # of a family: which one, as {stage: dev}; scope is the name for <scope>
    allow: list[Literal["read", "delete", "write"]] | None = None
    services: Names | None = None
    until: Date | None = None
    on_expiry: OnExpiry | None = None
    owner: str = ""
    about: str = ""


class LegacyModel(_Model):
    """Deprecated key forms, each with the entry that replaces it."""

    allow: list[Literal["read", "delete", "write"]] = []  # of the entry's rights; [] is none of them
    services: Names | None = None  # to these alone; else to all that have the entry's rights
    until: Date | None = None
    on_expiry: OnExpiry = "report"  # refuse: after the last day nothing is allowed any more
    owner: str = ""
    keys: dict[str, Annotated[LegacyKeyModel, BeforeValidator(_mapping_or("the entry", "entry"))]] = {}


class GrantModel(_Model):
    """Commands (by name or @category, or `*`) that a service may use beyond the default, and on what."""

    commands: Names
    keys: Names = []  # globs, or the word legacy; these keys are then open to these commands
    channels: Names = []  # globs; these channels are too
    until: Date | None = None
    on_expiry: OnExpiry = "report"
    owner: str = ""
    reason: str = ""


class ChannelModel(_Model):
    """A Pub/Sub channel, or a family of them, and who speaks and listens there."""

    channel: str
    about: str = ""
    publishers: Names = []
    subscribers: Names = []
    written_by: Names = []  # scripts and functions; nothing else may publish here


def _keys_of_script(value: Any) -> Any:
    if isinstance(value, str) and value != "any":
        if not value.isascii() or not value.isdigit() or len(value) > 4:
            raise ValueError(f"{value!r}: write how many keys it declares, any, or a list of their patterns")
        return int(value)
    return value


class TouchModel(_Model):
    """A key that a script touches, with what it makes of it."""

    key: str  # a template over KEYS, ARGV and the placeholders of the declared keys
    type: Annotated[list[ValueType], BeforeValidator(_as_list)] = []
    # What time to live it leaves the key with: 30s, <ARGV.1>s or <ARGV.1>ms; a negative argument means none.
    ttl: str = ""
    commands: Names = []  # those that it runs on this key; else those of the script


Touched = Annotated[
    list[Annotated[TouchModel, BeforeValidator(_mapping_or("template", "key"))]],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
]


class FunctionModel(_Model):
    """What a library's function touches: its exact declared keys, and templates over KEYS and ARGV."""

    about: str = ""
    # How many keys a call declares (or any), or one pattern for each, whose placeholders templates may use.
    keys: Annotated[int | Literal["any"] | list[str], BeforeValidator(_keys_of_script)] = 0
    declared: Literal["both", "read", "write", "none"] | None = None  # what is done to the declared keys
    reads: Touched = []
    writes: Touched = []
    publishes: Names = []
    commands: Names = []  # those that it runs on its keys, where an entry restricts them
    # Nothing that a client sends shapes its replies and error texts, so a connection that clients share may
    # carry it.
    shared: Flag = False


class ScriptModel(FunctionModel):
    """A Lua script that is registered, by the SHA-1 of its text."""

    sha1: Names = []  # 40 hex digits, or at least the first eight with ... behind them
    source: str = ""  # a file with its text, relative to the policy file


class CommandsModel(_Model):
    """Commands (by name or @category) forbidden or allowed to everyone, beyond the built-in default."""

    forbid: Names = []
    allow: Names = []  # `*` is every command that isn't forbidden here


class CallerModel(_Model):
    """A placeholder whose value each client brings along."""

    from_: Literal["user", "certificate"] = Field(alias="from")  # whose name it is taken from
    pattern: str = "(.*)"  # the form of the name; its one group is the value
    across: Names = []  # services whose rights hold on the keys of all values


def _binding(value: Any) -> str:
    """Which of the forms below a binding is written in."""
    if isinstance(value, dict) and isinstance(value.get("from"), str):
        return "(caller)"
    if isinstance(value, dict) and isinstance(value.get("write"), dict):
        return "(write)"
    return "(services)"


_Caller = Annotated[CallerModel, Tag("(caller)")]
_Services = Annotated[dict[str, Names], Tag("(services)")]  # service: its values


class WriteModel(_Model):
    """A placeholder that binds writing alone."""

    write: Annotated[_Caller | _Services, Discriminator(_binding)]


# Whose the values of a placeholder are.
Binding = Annotated[
    _Caller | Annotated[WriteModel, Tag("(write)")] | _Services,
    Discriminator(_binding),
]


# What a script may do that no registration covers: run, judged by the keys that it declares; be loaded and
# not run; neither. From the lenient word to the strict one.
UnregisteredScripts = Literal["declared", "load_only", "forbid"]


def _unregistered_scripts(value: Any) -> Any:
    if value == "allow":
        raise ValueError(
            "write declared in place of allow; then a script that isn't registered is judged by what it "
            "declares, and can touch any other key"
        )
    return value


class LevelsModel(_Model):
    """How many levels a name has, `:` between them."""

    min: Annotated[int | None, Field(ge=1, le=64)] = None  # and none of them empty
    max: Annotated[int | None, Field(ge=1, le=64)] = None


class NameRules(_Model):
    """What a key's name must be like."""

    max_length: LengthText | None = None
    charset: str | None = None  # a class for one byte, as [a-z0-9:_]
    lowercase: Flag = False  # no A to Z
    levels: LevelsModel | None = None
    level: str | None = None  # a class that each level is of
    after: dict[str, str] = {}  # level: the class of what follows it, as {date: date}
    avoid: dict[str, str] = {}  # abbreviation: what to write in its place
    hash_tag: HashTag | None = None


class NamesModel(NameRules):
    """What holds for the name of every key in the policy's claims, whatever its kind; legacy ones aside."""

    should: NameRules = NameRules()  # what is told and never refused


@file_kind("a policy, which --policy names")
class PolicyModel(Rights):
    """A policy file. Its own rights are those of entries that lie in no scope and have none themselves."""

    policy: str
    about: str = ""
    owner: Owner = Owner()
    claims: Names = []
    services: list[str] = []  # those of other files of the same folder may be used too
    databases: list[Annotated[int, Field(ge=0)]] | None = None
    should: list[RuleName] = []
    placeholders: dict[str, Annotated[PlaceholderModel, BeforeValidator(_mapping_or("class", "is"))]] = {}
    bind: dict[str, Binding] = {}  # placeholder: service: its values; or where a client's own is taken from
    # Segments that say of which type a key is, as {list: list, zset: zset}.
    type_words: dict[str, Annotated[list[ValueType], BeforeValidator(_as_list)]] = {}
    scopes: dict[str, ScopeModel] = {}
    keys: dict[str, EntryModel] = {}
    legacy: LegacyModel = LegacyModel()
    instead: dict[str, str] = {}  # wrong forms that are in use: what to write in their place
    channels: dict[str, ChannelModel] = {}
    scripts: dict[str, ScriptModel] = {}
    functions: dict[str, FunctionModel] = {}
    unregistered_scripts: Annotated[UnregisteredScripts, BeforeValidator(_unregistered_scripts)] = "load_only"
    cluster: Flag = False  # keys of one command and of one transaction must share a hash slot
    commands: CommandsModel = CommandsModel()
    grants: dict[str, GrantModel] = {}
    names: NamesModel = NamesModel()
