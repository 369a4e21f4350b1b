"""What a session asks its owner, because only this process, or only others, know it.

Rule: a question is made of plain values, and so is its answer. `answered` is called once; None means that
no answer came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Kind = Literal["whose", "explain", "findings", "readiness", "stats", "clients", "upstreams"]


class Question(NamedTuple):
    """A question of one of these kinds, about its content:

    whose (service, node, id): whether a client of the service was shown this connection id of the node.
    explain (service, argv, caller): what the policy says about a command.
    findings (service,), readiness (service,): the findings of a service; which rules can be enforced for it.
    stats (service,): how many commands and violations it had.
    clients (service,): the clients of all processes, those of the service first.
    upstreams (): each upstream and its state.

    The answer to `whose` is a truth value, the others' are fields of a reply (`resp.values.answer`).
    """

    kind: Kind
    content: tuple[Any, ...]
    answered: Callable[[Any], None]
