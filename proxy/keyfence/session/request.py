"""A client's request while it is evaluated.

Rule: the authorizer that begins to evaluate a request ends it, whatever is loaded meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.commands.model import Touches
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.forms import Lookup
from keyfence.session.conversation.executor import OTHER, Handler


class Request(NamedTuple):
    """One request, who asks, and the authorizer that decides."""

    authorizer: Authorizer
    asker: Asker
    argv: list[bytes]
    handler: Handler | None  # carries it out, if it changes the session itself
    size: int  # of its bytes that are held
    lookup: Lookup | None  # what the decision cache knows of it; None: it was not asked


def label_of(touches: Touches) -> str:
    """Returns the name under which a command is counted."""
    return touches.command.name if touches.command is not None else OTHER
