"""Brings a share of a digest to its target, whatever kind that is.

Rule: one try, with a limit of time. A failure says why in words that may be shown.
"""

from __future__ import annotations

import aiohttp

from . import mail, posting, slack, teams
from .digest import Digest
from .mail import NotMailed
from .plan import Plan, Target
from .posting import FAILURES, Refused, host_of, why_not
from .wording import as_object, document_of


class NotDelivered(Exception):
    """The target has not taken it; the text may be shown."""


def shown(target: Target) -> str:
    """A target for people, without what may be a secret."""
    if target.email:
        first, more = target.email[0], len(target.email) - 1
        return f"{first} and {more} more" if more else first
    return f"the webhook at {host_of(target.webhook)}"


async def deliver(
    session: aiohttp.ClientSession, plan: Plan, target: Target, share: Digest, period: str
) -> str:
    """Send a share to a target. Returns what is wrong although it has taken it; "": nothing. Raises
    NotDelivered."""
    try:
        if target.email:
            assert plan.smtp is not None
            name = f"news.{period.replace(' ', '-')}.{target.name}"
            return await mail.send(document_of(share, plan.page), plan.smtp, target.email, name)
        if target.form == "json":
            body = as_object(share, plan.page)
        else:
            form = slack if target.form == "slack" else teams
            body = form.message(document_of(share, plan.page))
        await posting.post(session, target.webhook, body, posting.TIMEOUT)
    except (*FAILURES, Refused) as exc:
        raise NotDelivered(why_not(exc)) from None
    except NotMailed as exc:
        raise NotDelivered(str(exc)) from None
    return ""
