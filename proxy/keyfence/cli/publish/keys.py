"""`keyfence key` and `keyfence verify`: keys that sign policies, and whether a policy is signed by one.

Rule: a private key is never printed, and its file is for its owner only from the moment it exists.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import click

from keyfence.cli.terminal.options import format_option, print_json, value_option
from keyfence.cli.terminal.output import fail, say
from keyfence.fleet.keys import (
    NEEDS,
    PREFIX,
    PublicKey,
    Signer,
    Trust,
    is_available,
    new_private,
    parse_public,
    read_public,
    read_signer,
)
from keyfence.fleet.manifest import check_name
from keyfence.fleet.signed import check_contents, read_signed
from keyfence.policy.loading.load import load_policy
from keyfence.policy.source.files import Reading

TRUST_HELP = f"A key that may have signed it: {PREFIX}BASE64, or a file of such keys. May be repeated."


def trusted(texts: Sequence[str]) -> tuple[PublicKey, ...]:
    """The keys that options name. Ends the command if one is none."""
    found: list[PublicKey] = []
    for text in texts:
        try:
            found += [parse_public(text)] if text.startswith(PREFIX) else read_public(text)
        except ValueError as exc:
            fail(f"--trust: {exc}")
    return tuple(found)


def signer_of(path: str) -> Signer:
    """The private key that --key names. Ends the command if it is none."""
    need_signatures()
    if not path:
        fail("give the private key that signs with --key FILE; keyfence key FILE makes one")
    try:
        return read_signer(path)
    except ValueError as exc:
        fail(f"--key: {exc}")


def need_signatures() -> None:
    if not is_available():
        fail(NEEDS)


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--show", is_flag=True, help="Print the public key of a file that is there.")
def key(file: str, show: bool) -> None:
    """Make a key pair: write the private key to FILE, and print the public one.

    The public key goes under trust of each configuration that takes policies signed by it. FILE is never
    overwritten.
    """
    need_signatures()
    if show:
        say(signer_of(file).public.text)
        return
    private = new_private()
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        fail(f"{file} exists already; name a new file, or print its public key with --show")
    except (OSError, ValueError) as exc:
        fail(f"{file} cannot be written: {getattr(exc, 'strerror', None) or exc}")
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(private)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as exc:
        with contextlib.suppress(OSError):
            Path(file).unlink()
        fail(f"{file} cannot be written: {exc.strerror}")
    say(Signer(private).public.text)


@click.command()
@click.argument("policy", metavar="POLICY")
@click.option("--trust", "trust", metavar="KEY", multiple=True, required=True, help=TRUST_HELP)
@value_option("--name", "NAME", "The name under which it must be published.", required=True)
@format_option("text", "json")
def verify(policy: str, trust: Sequence[str], name: str, form: str) -> None:
    """Check a policy's signature: who signed which version, and that its files are those that were signed.

    The signature is beside a file (FILE.sig), and within a folder (policy.sig).

    Exit code 0: it is as it was signed; 2: it is not.
    """
    need_signatures()
    try:
        wanted = Trust(check_name(name), trusted(trust))
    except ValueError as exc:
        fail(f"--name: {exc}")
    signed = read_signed(policy, wanted)
    with Reading() as reading:
        try:
            load_policy(policy)
        finally:
            check_contents(policy, signed, reading.contents())
    if form == "json":
        print_json(signed.status())
        return
    one = signed.manifest
    say(f"{policy}: {one.name} {one.sequence}, signed by {signed.key}, of {one.author} at {one.time}")
    if one.message:
        say(one.message)
