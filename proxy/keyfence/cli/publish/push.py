"""`keyfence push` and `keyfence rollback`: the versions of a policy in a store.

Rule: only a policy that checks, and whose tests pass, is signed. What is signed is what was checked, byte for
byte. Old content is signed again only if its own signature is right.
"""

from __future__ import annotations

import datetime
import getpass
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from keyfence.authoring.lint import check_policy
from keyfence.authoring.testing import SUFFIX, Runner, read_cases
from keyfence.cli.terminal.options import format_option, print_json, value_option
from keyfence.cli.terminal.output import fail, print_table, say, table_of
from keyfence.cli.terminal.policies import POLICY
from keyfence.fleet.keys import PublicKey, Signer, signature_fault
from keyfence.fleet.manifest import MAX_TEXT, Manifest, check_sequence, differences, digest_of
from keyfence.fleet.signed import named_contents
from keyfence.fleet.store import Store, Version
from keyfence.fleet.store import history as versions_of
from keyfence.policy.diagnostics import FileError
from keyfence.policy.loading.load import load_policy
from keyfence.policy.source.files import POLICY_ENDS, Reading
from keyfence.policy.units import counted

from .keys import TRUST_HELP, signer_of, trusted
from .stores import asked, ca_option, candidate_of, name_option, store_of, store_option

_Command = TypeVar("_Command", bound=Callable[..., Any])
KEY_VARIABLE = "KEYFENCE_KEY"


def key_option(command: _Command) -> _Command:
    about = "File of the private key that signs; keyfence key makes one."
    return value_option("--key", "FILE", about, envvar=KEY_VARIABLE, show_envvar=True)(command)


def _text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ValueError(f"this has more than {MAX_TEXT} characters; write less")
    return value.encode("utf-8", "replace").decode()


def about_options(command: _Command) -> _Command:
    """Adds the options that say who publishes, and why."""
    author = value_option("--author", "TEXT", "Who publishes it.  [default: the user's name]", _text)
    message = value_option("--message", "TEXT", "What this version changes.", _text)
    return author(message(command))


@click.command()
@click.argument("policy", type=POLICY)
@store_option("--to")
@name_option()
@key_option
@about_options
@value_option("--sequence", "NUMBER", "The sequence, if it is to be more than the next.", type=int, default=0)
@click.option(
    "--candidate",
    is_flag=True,
    help="Store it as the candidate, which every instance compares with the policy in force.",
)
@ca_option
@format_option("text", "json")
def push(policy: str, place: str, name: str, key: str, sequence: int, **more: Any) -> None:
    """Check, test, sign and store a policy as the newest version.

    Its tests are the files *.test.yaml in its folder that name it. By default it is published under its own
    name. With --candidate no instance puts it in force: see keyfence fleet diff, then keyfence promote.

    Exit code 0: it is stored; 1: it has faults, a test fails, somebody else has pushed meanwhile, or the
    store does not answer; 2: wrong usage.
    """
    if not os.path.isdir(policy) and not policy.endswith(POLICY_ENDS):
        fail(f"{policy} does not end in .yaml or .yml, so no instance would find it; rename it")
    signer = signer_of(key)
    with Reading():  # so that all that follows is about the same bytes
        own, tested = _checked(policy)
        with Reading() as of_policy:
            load_policy(policy)
    contents = named_contents(policy, of_policy.contents())
    store = store_of(place, name or own, more["ca"])
    manifest = Manifest(
        name or own, 0, _hashes(contents), more["author"] or user_name(), more["message"], time_now()
    )
    publishes = publish_candidate if more["candidate"] else publish
    stored = publishes(store, signer, manifest, contents, sequence)
    report(stored, store, more["form"], f"{counted(tested, 'test')} passed")


def _checked(policy: str) -> tuple[str, int]:
    """The policy's own name, and how many tests it has passed. Ends the command if it has faults."""
    errors, _, _ = check_policy(policy)
    for one in errors:
        say(one.illustrated(), err=True)
    if errors:
        fail(f"{policy} has faults; nothing was stored", 1)
    runner, tested, failures, faults = Runner(), 0, [], []
    for file in _test_files(policy):
        try:
            result = runner.run(file)
        except FileError as exc:
            faults += exc.diagnostics
            continue
        tested += len(result.results)
        failures += [one for case in result.results for one in case.failures]
    for one in (*faults, *failures):
        say(one.illustrated(), err=True)
    if faults or failures:
        fail(f"tests of {policy} fail; nothing was stored", 1)
    return load_policy(policy).name, tested


def _test_files(policy: str) -> list[Path]:
    """The test files of a policy: those in its folder that name it."""
    path = Path(policy)
    folder = path if path.is_dir() else path.parent
    return [
        file
        for file in sorted(folder.glob(f"*{SUFFIX}"))
        if os.path.realpath(read_cases(file).policy) == os.path.realpath(path)
    ]


def _hashes(contents: Mapping[str, bytes]) -> tuple[tuple[str, str], ...]:
    return tuple((name, digest_of(content)) for name, content in sorted(contents.items()))


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def time_now() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def publish(
    store: Store, signer: Signer, manifest: Manifest, contents: Mapping[str, bytes], sequence: int
) -> Version:
    """Sign this as the next version, and store it. Ends the command if that fails."""
    after = asked(store.last())
    version = Version(signer.sign(_next(manifest, store, after, sequence)), contents)
    asked(store.add(version, after))
    return version


def publish_candidate(
    store: Store, signer: Signer, manifest: Manifest, contents: Mapping[str, bytes], sequence: int
) -> Version:
    """Sign this as the candidate for the version after the newest one, and store it. Ends the command if that
    fails."""
    beside = candidate_of(store)
    base, after = asked(store.last()), asked(beside.last())
    if not base:
        fail(f"{store.shown} has no version yet, so there is nothing to compare with; push one first", 1)
    manifest = _next(manifest, store, after, sequence)._replace(base=base)
    version = Version(signer.sign(manifest), contents)
    asked(beside.put(version, after))
    return version


def _next(manifest: Manifest, store: Store, after: int, sequence: int) -> Manifest:
    """The manifest with the next sequence, or with a given larger one. Ends the command if it is not."""
    if sequence and sequence <= after:
        fail(f"--sequence: {store.shown} has sequence {after} already; give a larger one")
    try:
        return manifest._replace(sequence=check_sequence(sequence or after + 1))
    except ValueError as exc:
        fail(f"--sequence: {exc}")


def report(version: Version, store: Store, form: str, more: str) -> None:
    one = version.manifest
    if form == "json":
        print_json(version.signed.status() | {"store": store.shown, "files": dict(one.files)})
        return
    what = one.name if one.base is None else f"candidate {one.name}"
    based = "" if one.base is None else f", based on version {one.base}"
    say(f"pushed {what} {one.sequence} to {store.shown}{based}, signed by {version.signed.key}; {more}")


def print_versions(place: str, name: str, trust: Sequence[str], ca: str, form: str) -> None:
    """Lists the versions that a store has, and ends the command with 1 if one is not as it was signed."""
    keys = trusted(trust)
    store = store_of(place, name, ca)
    rows = [_row(*one, keys) for one in asked(versions_of(store))]
    if form == "json":
        print_json(rows)
    elif rows:
        names = ("sequence", "time", "author", "key", "state", "message")
        print_table(table_of(names, ([str(row[one]) for one in names] for row in rows), right=("sequence",)))
    else:
        say(f"{store.shown} has no version of {name}.")
    sys.exit(1 if any(row["state"] not in ("signed", "not checked") for row in rows) else 0)


def _row(sequence: int, version: Version | None, keys: tuple[PublicKey, ...]) -> dict[str, Any]:
    if version is None:
        empty = dict.fromkeys(("name", "author", "message", "time", "key"), "")
        return {**empty, "sequence": sequence, "state": "missing, or without a signature"}
    return version.signed.status() | {"sequence": sequence, "state": state_of(sequence, version, keys)}


def state_of(sequence: int, version: Version, keys: tuple[PublicKey, ...], name: str = "") -> str:
    """Whether a version is as it was signed, under this name ("": any)."""
    if name and version.manifest.name != name:
        return f"it was signed as {version.manifest.name}"
    found = differences(version.manifest, version.contents)
    if version.manifest.sequence != sequence:
        found.append(f"it was signed as sequence {version.manifest.sequence}")
    if keys and (fault := signature_fault(version.signed, keys)):
        found.append(fault)
    return "; ".join(found) or ("signed" if keys else "not checked")


@click.command()
@click.argument("sequence", type=int)
@store_option("--to")
@name_option(required=True)
@key_option
@about_options
@click.option("--trust", "trust", metavar="KEY", multiple=True, help=TRUST_HELP)
@ca_option
@format_option("text", "json")
def rollback(sequence: int, place: str, name: str, key: str, trust: Sequence[str], **more: str) -> None:
    """Publish the content of an earlier version again, as the newest version.

    The earlier version must be signed by --key or by one of --trust. Instances take a newer sequence only, so
    this signs the content anew.

    Exit code 0: it is stored; 1: there is no such version, it is not as it was signed, or it does not check;
    2: wrong usage.
    """
    signer = signer_of(key)
    store = store_of(place, name, more["ca"])
    old = asked(store.read(sequence))
    if old is None:
        fail(f"{store.shown} has no version {sequence}; keyfence history lists them", 1)
    state = state_of(sequence, old, (signer.public, *trusted(trust)), name)
    if state != "signed":
        fail(f"{store.shown}: version {sequence} is not published again: {state}", 1)
    check_old(old, f"version {sequence}")
    message = more["message"] or f"rollback to {sequence}"
    manifest = Manifest(name, 0, old.manifest.files, more["author"] or user_name(), message, time_now())
    stored = publish(store, signer, manifest, old.contents, 0)
    report(stored, store, more["form"], f"the content is that of {sequence}")


def check_old(version: Version, what: str) -> None:
    """Whether this keyfence would load the policy of a version or candidate. Ends the command if not."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in version.contents.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        errors, _, _ = check_policy(folder)
    for one in errors:
        say(one.illustrated(), err=True)
    if errors:
        fail(f"{what} has faults for this keyfence; nothing was stored", 1)
