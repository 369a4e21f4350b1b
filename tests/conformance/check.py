"""A check: a sentence about every Redis proxy, a function that finds out whether it holds, and how that ends.

Rule: the docstring of a check's function is its sentence. A check that returns has passed; all other ends are
exceptions of this module.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tests.conformance.wire import shown

if TYPE_CHECKING:
    from tests.conformance.trial import Trial

SECONDS = 5.0  # of a check, unless it says more

# Errors by which a proxy or a server says clearly that it does not do something.
_NOT_SUPPORTED = re.compile(
    rb"-(?:NOPERM|[^\r]*(?:unknown (?:sub)?command|unsupport|not support|not allowed|forbid|disabled"
    rb"|invalid DB index))",
    re.IGNORECASE,
)


class Outcome(enum.Enum):
    """How a check ended."""

    PASSED = "pass"
    FAILED = "fail"
    NOT_SUPPORTED = "not supported"
    NOT_CHECKED = "not checked"


class Failed(Exception):
    """The sentence does not hold: what was expected, and what came."""

    def __init__(self, expected: str, came: str) -> None:
        super().__init__(expected, came)
        self.expected = expected
        self.came = came


class NotSupported(Exception):
    """A clear error says that this is not supported; the text is the error."""


class NotChecked(Exception):
    """This cannot be found out here; the text says why."""


class Need(enum.Enum):
    """What a check needs beyond the proxy's address. Its value is shown where that is missing."""

    DIRECT = "needs the address of the Redis behind (--direct)"
    PROXY = "there is no proxy: both addresses are one"
    ONE_REDIS = "it is for a proxy before one Redis"
    CLUSTER = "it is for a proxy before a Redis Cluster"
    DISTURB = "it disturbs the cluster (--disturb)"


class Check(NamedTuple):
    """One check."""

    group: str
    sentence: str
    run: Callable[[Trial], None]
    needs: Sequence[Need]
    seconds: float


class Result(NamedTuple):
    """How one check ended; `expected` and `came` only if it failed, `came` also where a text says why."""

    group: str
    sentence: str
    outcome: Outcome
    expected: str = ""
    came: str = ""
    seconds: float = 0.0


# The groups, in the order of the report.
GROUPS = (
    "protocol",
    "same bytes as Redis",
    "commands of many keys",
    "transactions",
    "blocking commands",
    "publish and subscribe",
    "scripts and functions",
    "SCAN",
    "server commands",
    "connections",
    "isolation of clients",
    "connections to Redis",
    "a cluster that changes",
)
CHECKS: list[Check] = []
Run = TypeVar("Run", bound="Callable[[Trial], None]")


def check(group: str, *needs: Need, seconds: float = SECONDS) -> Callable[[Run], Run]:
    """Makes a function a check of a group."""
    assert group in GROUPS

    def add(run: Run) -> Run:
        sentence = " ".join((run.__doc__ or "").split()).removesuffix(".")
        assert sentence, run
        CHECKS.append(Check(group, sentence, run, needs, seconds))
        CHECKS.sort(key=lambda check: GROUPS.index(check.group))
        return run

    return add


def same(came: bytes, wanted: bytes, *, after: str = "") -> None:
    """Ends the check unless a reply is the expected one."""
    if came != wanted:
        supported(came)
        raise Failed(shown(wanted) + (f" (after {after})" if after else ""), shown(came))


def all_same(came: Sequence[bytes], wanted: Sequence[bytes]) -> None:
    """Ends the check unless all replies are the expected ones."""
    for number, (one, other) in enumerate(zip(came, wanted, strict=True), 1):
        same(one, other, after=f"{number - 1} of {len(wanted)} right replies" if number > 1 else "")


def supported(came: bytes) -> None:
    """Ends the check if a reply says that this is not supported."""
    if _NOT_SUPPORTED.match(came):
        raise NotSupported(shown(came).removeprefix("-").removesuffix("\\r\\n"))


def holds(is_so: bool, expected: str, came: object) -> None:
    """Ends the check unless something holds."""
    if not is_so:
        if isinstance(came, bytes):
            supported(came)
            came = shown(came)
        raise Failed(expected, str(came))


def is_error(came: bytes, beginning: str = "") -> None:
    """Ends the check unless a reply is an error that begins so."""
    if not came.startswith(b"-" + beginning.encode()):
        if came.startswith(b"-"):
            supported(came)
        raise Failed(f"an error {beginning}".rstrip(), shown(came))


def is_cross_slot(came: bytes) -> bool:
    """Whether a reply is the clear error about keys in several hash slots."""
    return came.startswith(b"-CROSSSLOT")
