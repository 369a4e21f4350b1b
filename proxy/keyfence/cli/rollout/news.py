"""`keyfence news`: what the news of a period says, before anybody gets them.

Rule: it prints what a target would get, and claims nothing. Only --send sends, to the targets of a
configuration, and says what became of each.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from keyfence.cli.terminal.asking import ask_admin, checked_answer
from keyfence.cli.terminal.options import admin_option, format_option, is_given, print_json, value_option
from keyfence.cli.terminal.output import fail, say
from keyfence.config.fields import parse_store
from keyfence.config.settings import Settings
from keyfence.findings.proof.basis import InForce
from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.show import one_line
from keyfence.process.causes import Causes
from keyfence.process.news import covered, plan_of
from keyfence.process.serving.reload import Origin

from .stores import store_at
from .times import since_time

if TYPE_CHECKING:  # SQLAlchemy takes a fifth of a second to import
    from keyfence.findings.news.digest import Digest
    from keyfence.findings.news.document import Document
    from keyfence.findings.news.plan import Plan


@click.command()
@value_option("--since", "TIME", "What has happened since: 24h, 7d, 2026-03-01.", since_time, default="24h",
              show_default=True)  # fmt: skip
@value_option("--owner", "OWNER", "Only what belongs to this owner.")
@value_option(
    "--findings", "URL", "Read this findings store, without a running keyfence.", parse_store, default=None
)
@value_option("--config", "FILE", "Read the store, the policy and the targets of this configuration.")
@click.option("--send", is_flag=True, help="Send it now to the targets of --config, and say who took it.")
@admin_option
@format_option("text", "markdown", "html", "json")
def news(since: float, admin: str, form: str, **asked: Any) -> None:
    """Show what has happened: new findings, what got better, what ends soon, which rules are ready.

    It is what `news` in the configuration sends by day or week, and changes nothing. With --findings, nobody
    knows which rules are ready, because that depends on the policy.

    Exit code 0; 1: with --send, a target has not taken it.
    """
    owner, store, config = asked["owner"], asked["findings"], asked["config"]
    if bool(store) + bool(config) + is_given(click.get_current_context(), "admin") > 1:
        fail("give only one of --admin, --findings and --config")
    if since >= time.time():
        fail("--since: the time is not over; news is about what has happened since a time")
    if asked["send"]:
        if not config or owner:
            fail("--send is for all targets of a configuration; name it with --config, and omit --owner")
        _send(config, since)
        return
    answer: Mapping[str, Any]
    if config:
        settings, digest = _of_configuration(config, since)
        answer = _only_of(digest, owner, settings.news.page if settings.news is not None else "")
    elif store:
        with store_at(store) as reader:
            answer = _only_of(_digest(reader, since), owner)
    else:
        query = {"since": since, **({"owner": owner} if owner else {})}
        answer = ask_admin(admin, f"/news?{urlencode(query)}")
    with checked_answer(admin):
        text = _text(answer, form)
        knows_ready = answer["knows_ready"] is True
    if form == "json":
        print_json(answer)
    else:
        say(text.rstrip("\n"))
    if not knows_ready and not owner:
        say("which rules are ready is not known: that depends on a policy; name it with --config", err=True)


def _digest(reader: Any, since: float, in_force: InForce | None = None) -> Digest:
    """The digest of a store."""
    from keyfence.findings.news.digest import Bounds
    from keyfence.findings.views import Views

    now = time.time()
    in_force = InForce() if in_force is None else in_force
    try:
        views = Views(reader, in_force)
        return covered(views, Bounds(since, now, now - since), Causes(in_force.policy)).digest
    except ValueError as exc:
        fail(str(exc), 1)


def _of_configuration(config: str, since: float) -> tuple[Settings, Digest]:
    """The settings of a configuration, and the digest of its store under its policy."""
    settings, policy = Origin(config).load()
    if not settings.findings:
        fail(f"{config} says findings: none, so there are no news")
    in_force = InForce()
    if policy is not None:
        in_force = InForce(policy, Modes(settings.modes, policy.services, settings.waived()))
    with store_at(settings.findings) as reader:
        return settings, _digest(reader, since, in_force)


def _only_of(digest: Digest, owner: str, page: str = "") -> dict[str, Any]:
    from keyfence.findings.news.share import only_of
    from keyfence.findings.news.wording import as_object

    return as_object(only_of(digest, owner), page)


def _text(answer: Mapping[str, Any], form: str) -> str:
    """The news in a form; it fails for an answer that is not keyfence's."""
    from keyfence.findings.news.document import as_html, as_markdown, as_text
    from keyfence.findings.news.wording import document_of

    made: Document = document_of(dict(answer), str(answer["page"]))
    return {"markdown": as_markdown, "html": as_html}.get(form, as_text)(made)


def _send(config: str, since: float) -> None:
    """Sends the digest to each target, even if there is nothing in it, and prints what became of it."""
    settings, digest = _of_configuration(config, since)
    if settings.news is None:
        fail(f"{config} has no news: to send; docs/news.md says how they are written")
    failures = 0
    for target, why in asyncio.run(_delivered(plan_of(settings.news), digest)):
        failures += bool(why)
        say(f"{target}: {one_line(why) or 'sent'}")
    for owner in _unknown(settings, digest):
        say(f"nothing in this digest belongs to {owner!r}; keyfence findings lists owners", err=True)
    sys.exit(1 if failures else 0)


async def _delivered(plan: Plan, digest: Digest) -> list[tuple[str, str]]:
    """Each target, and why it has not taken its share; "": it has."""
    import aiohttp

    from keyfence.findings.news.delivery import NotDelivered, deliver, shown
    from keyfence.findings.news.share import share_of

    found = []
    async with aiohttp.ClientSession() as session:
        for one in plan.targets:
            share = share_of(digest, one, plan.targets)
            try:
                why = await deliver(session, plan, one, share, f"try {time.time():.0f}")
            except NotDelivered as exc:
                why = str(exc)
            found.append((shown(one), why))
    return found


def _unknown(settings: Settings, digest: Digest) -> Iterator[str]:
    """The owners of the configuration to whom nothing belongs."""
    assert settings.news is not None
    owned = {
        row["owner"] for rows in digest.values() if isinstance(rows, list) for row in rows if "owner" in row
    }
    yield from (owner for owner in settings.news.owners if owner not in owned)
