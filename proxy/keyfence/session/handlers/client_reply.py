"""CLIENT REPLY: switches a client's replies off and on.

Rule: Redis always replies; keyfence drops the replies that the client has switched off.
"""

from __future__ import annotations

from keyfence.commands.arguments import word
from keyfence.resp import encode
from keyfence.session.conversation.conversation import Conversation
from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.reply_queue import OFF, ON, SKIP


def client_reply(executor: Executor, argv: Argv) -> None:
    """Redis continues to reply and keyfence drops the replies, so that it still sees where each one ends.

    `CLIENT REPLY ON` goes to Redis in place of OFF and SKIP, in the client's own spelling. Its reply shows
    whether this client may use the command.
    """
    conversation, mode = executor.conversation, word(argv[2])
    changes = mode in (b"OFF", b"SKIP") or (mode == b"ON" and conversation.replies.mode != ON)
    if changes and conversation.transaction is not None:
        executor.become_opaque("it changes which replies are sent inside MULTI")
    elif mode not in (b"OFF", b"SKIP"):
        if mode == b"ON":
            conversation.replies.mode = ON
        executor.forward_one()
    elif conversation.replies.mode == OFF:
        executor.count_forwarded()  # they are off already, and no reply is due
    else:
        executor.count_forwarded()
        conversation.to_upstream.append(encode.command(*argv[:2], b"ON"))
        conversation.hold()
        conversation.replies.drop_unless_error(lambda reply: _replies_switched(conversation, mode, reply))


def _replies_switched(conversation: Conversation, mode: bytes, reply: bytes) -> None:
    conversation.release()
    if not reply.startswith(b"-"):
        conversation.replies.mode = OFF if mode == b"OFF" else SKIP
