"""A client's request while it is evaluated.

Rule: the authorizer that begins to evaluate a request ends it, whatever is loaded meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.forms import Lookup
from keyfence.session.conversation.executor import Handler


class Request(NamedTuple):
    """One request, who asks, and the authorizer that decides."""

    authorizer: Authorizer
    asker: Asker
    argv: list[bytes]
    handler: Handler | None  # carries it out, if it changes the session itself
    size: int  # of its bytes that are held
    lookup: Lookup | None  # what the decision cache knows of it; None: it was not asked
