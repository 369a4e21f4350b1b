"""SUBSCRIBE, UNSUBSCRIBE and their variants.

Rule: a subscription command is sent when no other reply is due, and every confirmation is awaited.
"""

from __future__ import annotations

from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.subscriptions import Subscriptions, needs_names


def subscription(session: Executor, argv: Argv) -> None:
    """Follow it once every due reply is in: then the frames that come next can't be mistaken."""
    subscriptions = session.replies.subscriptions or Subscriptions()
    if session.transaction is not None and len(argv) == 1 and needs_names(argv):
        session.forward_one()  # too few arguments: Redis says so, and EXEC will abort
    elif session.transaction is not None:
        session.become_opaque("what it subscribes to inside MULTI can't be followed")
    elif not subscriptions.have_room_for(argv):
        session.become_opaque("so many subscriptions can't be followed")
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
