"""`keyfence promote` and `keyfence withdraw`: what becomes of the fleet's candidate.

Rule: only the candidate that was looked at is promoted, byte for byte, and only if it is as it was signed.
The policy gets a signature of its own: what is signed as a candidate is never in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from keyfence.cli.terminal.options import format_option, print_json
from keyfence.cli.terminal.output import fail, say
from keyfence.fleet.manifest import CANDIDATE_FORMAT, BadManifest, Signed, parse_signed
from keyfence.fleet.model import Offer
from keyfence.fleet.store import Store, Version

from .keys import TRUST_HELP, signer_of, trusted
from .push import about_options, check_old, key_option, report, state_of, time_now, user_name
from .stores import asked, ca_option, candidate_of, name_option, store_of, store_option


@click.command()
@click.argument("number", type=int)
@store_option("--to")
@name_option(required=True)
@key_option
@about_options
@click.option("--trust", "trust", metavar="KEY", multiple=True, help=TRUST_HELP)
@click.option(
    "--anyway", is_flag=True, help="Promote it although a newer version than it is based on is there."
)
@ca_option
@format_option("text", "json")
def promote(number: int, place: str, name: str, key: str, trust: Sequence[str], **more: Any) -> None:
    """Make the candidate with this NUMBER the newest version of the policy, and remove it as the candidate.

    keyfence fleet diff shows the number. The candidate must be signed by --key or by one of --trust. --key
    signs the same bytes anew, as a version.

    Exit code 0: it is stored; 1: the candidate is another one, or is not as it was signed, or is based on
    another version than the newest one; 2: wrong usage.
    """
    signer = signer_of(key)
    store = store_of(place, name, more["ca"])
    beside = candidate_of(store)
    seen = asked(beside.offer())
    found = _version(seen, store)
    one = found.manifest
    if one.sequence != number:
        fail(f"{store.shown} has candidate {one.sequence}, and not {number}; look at keyfence fleet diff", 1)
    state = state_of(number, found, (signer.public, *trusted(trust)), name)
    if state != "signed":
        fail(f"{store.shown}: candidate {number} is not promoted: {state}", 1)
    last = asked(store.last())
    if last != one.base and not more["anyway"]:
        fail(
            f"candidate {number} is based on version {one.base}, and {last} is the newest: promoting it "
            "would undo what that has changed; push the candidate again, or add --anyway",
            1,
        )
    check_old(found, f"candidate {number}")
    author, message = more["author"] or user_name(), more["message"] or one.message
    manifest = one._replace(sequence=last + 1, base=None, author=author, message=message, time=time_now())
    version = Version(signer.sign(manifest), found.contents)
    asked(beside.promote(seen, version, last))
    report(version, store, more["form"], f"it was candidate {number}")


def _version(seen: Offer, store: Store) -> Version:
    """The candidate, which is not checked yet. Ends the command if there is none."""
    if seen == Offer():
        fail(f"{store.shown} has no candidate; store one with keyfence push --candidate", 1)
    signed = _signed(seen)
    if signed is None:
        fail(f"{store.shown}: what is there is not signed as a candidate; push it again, or withdraw it", 1)
    return Version(signed, {signed.manifest.files[0][0]: seen.content})


def _signed(seen: Offer) -> Signed | None:
    """The manifest of a candidate, which is not checked yet; None: it is none."""
    try:
        return parse_signed(seen.signature, CANDIDATE_FORMAT)
    except BadManifest:
        return None


@click.command()
@store_option("--to")
@name_option(required=True)
@ca_option
@format_option("text", "json")
def withdraw(place: str, name: str, **more: str) -> None:
    """Remove the candidate from a store, so that every instance stops comparing it.

    No key is needed. An instance that has compared it does not take it again. Exit code 1: there is none, or
    another one came meanwhile.
    """
    store = store_of(place, name, more["ca"])
    beside = candidate_of(store)
    seen = asked(beside.offer())
    if seen == Offer():
        fail(f"{store.shown} has no candidate", 1)
    asked(beside.withdraw(seen))
    signed = _signed(seen)
    if more["form"] == "json":
        print_json({"withdrawn": signed and signed.status(), "store": store.shown})
        return
    what = "what was no candidate" if signed is None else f"candidate {name} {signed.manifest.sequence}"
    say(f"withdrew {what} from {store.shown}")
