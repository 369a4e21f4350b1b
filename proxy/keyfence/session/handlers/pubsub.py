"""SUBSCRIBE, UNSUBSCRIBE and their variants.

Rule: a subscription command is sent when no other reply is due, and every confirmation is awaited.
"""

from __future__ import annotations

from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.subscriptions import Subscriptions, needs_names


def subscription(session: Executor, argv: Argv) -> None:
    """Sends the command once every due reply has arrived, so that the next frames cannot be mistaken."""
    subscriptions = session.replies.subscriptions or Subscriptions()
    if session.transaction is not None and len(argv) == 1 and needs_names(argv):
        session.forward_one()  # too few arguments: Redis answers with an error, and EXEC will abort
    elif session.transaction is not None:
        session.become_opaque("subscriptions inside MULTI cannot be followed")
    elif not subscriptions.have_room_for(argv):
        session.become_opaque("keyfence cannot follow that many subscriptions")
    else:
        session.count_forwarded()
        session.when_answered(lambda: _subscribe(session, argv))


def _subscribe(session: Executor, argv: Argv) -> None:
    subscriptions = session.replies.follow_subscriptions()
    session.to_upstream.append(session.request)
    if len(argv) == 1 and needs_names(argv):
        session.replies.forward(1)  # too few arguments: an error
    else:
        session.replies.confirm(subscriptions.expect(argv))
