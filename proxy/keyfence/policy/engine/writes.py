# cython: annotation_typing=False
"""Writes that passed and leave something open: late findings are made from these values.

Rule: a write carries everything that a later finding names, and the authorizer that let it pass. So a reload
does not change the policy by which it is evaluated.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from keyfence.commands.model import Access
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.sizes import Question
from keyfence.policy.compiled.ttl import TtlRule
from keyfence.policy.verdict import Finding

from .asker import Asker

MAX_KEYS: Final = 10_000  # the number of keys of one command that a table follows; further ones are left out
MAX_KEY: Final = 1024  # bytes; a longer key is not followed, and counts as dropped


class LeftOpen(NamedTuple):
    """The outcome of one access for its key's time to live and size, if there is one."""

    outcome: int  # `ttl.outcome`, and whether the size is open too (`ttl.SIZED`)
    access: Access
    target: Target
    rule: TtlRule | None  # None: only the size is open


class LateAuthorizer(Protocol):
    """The part of an authorizer that rules on Redis' answer about a key some time after a write."""

    @property
    def policy(self) -> CompiledPolicy: ...

    def size_questions(self, command: str, position: int, target: int) -> tuple[Question, ...]: ...

    def late_ttl(
        self, write: Write, rule: TtlRule, everything: bool, remaining: int
    ) -> tuple[Finding, ...]: ...

    def late_size(self, write: Write, question: Question, size: int) -> tuple[Finding, ...]: ...


class Write:
    """One command that passed and wrote one key. `new_write` makes it."""

    authorizer: LateAuthorizer  # let the command pass, and rules on later answers
    asker: Asker
    command: str  # its name
    database: int  # the key's, which is another one than the asker's after MOVE
    key: bytes
    position: int  # of the key in the command
    target: Target  # the key's target in the policy


def new_write(
    authorizer: LateAuthorizer,
    asker: Asker,
    command: str,
    database: int,
    key: bytes,
    position: int,
    target: Target,
) -> Write:
    """Makes a write. Compiled code calls this without a tuple of arguments, which a class would need."""
    write = Write.__new__(Write)
    write.authorizer = authorizer
    write.asker = asker
    write.command = command
    write.database = database
    write.key = key
    write.position = position
    write.target = target
    return write
