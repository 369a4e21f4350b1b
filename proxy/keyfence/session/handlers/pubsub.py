"""SUBSCRIBE, UNSUBSCRIBE and their variants.

Rule: a subscription command is sent when no other reply is due, and every confirmation is awaited.
"""

from __future__ import annotations

from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.subscriptions import Subscriptions, needs_names


def subscription(executor: Executor, argv: Argv) -> None:
    """Sends the command once every due reply has arrived, so that the next frames cannot be mistaken."""
    subscriptions = executor.conversation.replies.subscriptions or Subscriptions()
    if executor.conversation.transaction is not None and len(argv) == 1 and needs_names(argv):
        executor.forward_one()  # too few arguments: Redis answers with an error, and EXEC will abort
    elif executor.conversation.transaction is not None:
        executor.become_opaque("subscriptions inside MULTI cannot be followed")
    elif not subscriptions.have_room_for(argv):
        executor.become_opaque("keyfence cannot follow that many subscriptions")
    else:
        executor.count_forwarded()
        executor.conversation.when_answered(lambda: _subscribe(executor, argv))


def _subscribe(executor: Executor, argv: Argv) -> None:
    subscriptions = executor.conversation.replies.follow_subscriptions()
    executor.conversation.to_upstream.append(executor.request)
    if len(argv) == 1 and needs_names(argv):
        executor.conversation.replies.forward(1)  # too few arguments: an error
    else:
        executor.conversation.replies.confirm(subscriptions.expect(argv))
