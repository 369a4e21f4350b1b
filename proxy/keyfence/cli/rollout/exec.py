"""`keyfence exec`: runs a command, such as a test suite, behind a keyfence, and judges what it did.

Rule: the command has standard input and output to itself, and gets every signal. When it has ended, so has
everything that was started for it. Its own failure counts before the gate's.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from keyfence.cli.terminal.options import ADMIN_VARIABLE, checked, format_option, value_option
from keyfence.cli.terminal.output import fail, say
from keyfence.cli.terminal.policies import POLICY, POLICY_HELP
from keyfence.config.fields import parse_store, store_url
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.config.upstream import upstream_of
from keyfence.findings.gate.baseline import Known
from keyfence.findings.gate.formats import FORMATS
from keyfence.findings.gate.judgement import judge
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.services import UNKNOWN
from keyfence.process.serving.packing import pack
from keyfence.process.serving.reload import Origin, load
from keyfence.process.serving.spawn import PR_SET_PDEATHSIG

from .gate import baseline_option, keep, known_findings, store_evidence, write_option
from .served import CannotServe, Serving, for_a_command, serving

URL_VARIABLE = "REDIS_URL"
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of shells
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_PASSED_ON = _ENDING | {signal.SIGUSR1, signal.SIGUSR2}


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@value_option("--policy", "POLICY", POLICY_HELP, type=POLICY)
@value_option("--config", "FILE", "Configuration with the policy, modes and waivers.")
@value_option(
    "--upstream",
    "URL",
    "A Redis for the command. Without it, keyfence starts one; the configuration's is never used.",
    checked(upstream_of),
)
@value_option("--service", "NAME", "The service that the command is.")
@click.option(
    "--env",
    "names",
    metavar="NAME[=SERVICE]",
    multiple=True,
    help=f"Set this variable too, as {URL_VARIABLE}; with SERVICE, to an address for this service. May be "
    "given several times.",
)
@click.option(
    "--mode",
    type=click.Choice(["observe", "enforce"]),
    help="Mode of every rule, instead of the configuration's.",
)
@baseline_option
@write_option
@value_option(
    "--findings store",
    "URL",
    "Keep the findings in this store, for keyfence gate; several runs may share it.",
    checked(parse_store),
)
@value_option("--decision-log log", "FILE", "Write violations to this file.")
@value_option("--output", "FILE", "Write the report here, not to standard error.")
@format_option(*FORMATS)
def exec_(command: Sequence[str], **options: Any) -> None:
    """Run a command behind a keyfence of its own, and fail on new findings.

    keyfence starts on a free port, in front of a Redis of its own. The command finds it in REDIS_URL. The
    report goes to standard error when the command has ended.

    Exit code: the command's, if it is not 0; else that of keyfence gate: 0 nothing new; 1 new findings; 2
    keyfence could not be used; 3 not known, because no command reached Redis, or an earlier run with another
    policy is in the store.
    """
    asked = _Asked(**options)
    known = known_findings(asked.baseline, asked.write)
    overrides = Overrides(asked.policy, asked.upstream, mode=asked.mode or "")  # type: ignore[arg-type]
    origin = Origin(asked.config, overrides)
    settings = load_settings(origin.config, overrides)
    compiled = load(settings)
    if not asked.upstream:  # only the command line names one: a configuration's is the real one
        settings = dataclasses.replace(settings, upstream=None)
    variables = _variables(settings, compiled, asked.service, asked.names)
    with _signals_waiting(), tempfile.TemporaryDirectory(prefix="keyfence-exec-") as folder:
        url = store_url(asked.store) if asked.store else f"sqlite:///{folder}/findings.db"
        services = tuple(dict.fromkeys(variables.values()))
        settings = for_a_command(settings, services, url, asked.log)
        try:
            with serving(origin, pack(settings, compiled), Path(folder), _is_interrupted) as running:
                code = _run(command, _environment(running, variables))
                lived = running.process.poll() is None
        except CannotServe as exc:
            sys.exit(exc.code) if not str(exc) else fail(str(exc), exc.code)
        if not lived or running.process.returncode:
            say("keyfence: keyfence did not last until the command's end, so nothing is judged", err=True)
            sys.exit(code or 2)
        try:
            judged = _judged(url, known, asked)
        except SystemExit as exc:
            sys.exit(code or exc.code)
        sys.exit(code or judged)


class _Asked(NamedTuple):
    """The options of the command."""

    policy: str
    config: str
    upstream: str
    service: str
    names: Sequence[str]
    mode: str | None
    baseline: str
    write: str
    store: str
    log: str
    output: str
    form: str


def _variables(
    settings: Settings, policy: CompiledPolicy, service: str, names: Sequence[str]
) -> dict[str, str]:
    """The variables to set, each with the service that its address is for; "" is unknown."""
    own = [one for one in policy.services if one != UNKNOWN]
    if not service:
        listening = {one.service for one in settings.serving if settings.source is not None}
        service = next(iter(listening)) if len(listening) == 1 else ""
    if not service and len(own) != 1:
        fail(f"--service is missing: which one is the command? {', '.join(own) or UNKNOWN}")
    found = {URL_VARIABLE: service or own[0]}
    for text in names:
        name, _, other = text.partition("=")
        if not name or "\0" in name:
            fail(f"--env {text!r} names no variable; write NAME or NAME=SERVICE")
        found[name] = other or found[URL_VARIABLE]
    for one in found.values():
        if one not in policy.services:
            fail(f"{one!r} is not a service of the policy{did_you_mean(one, policy.services)}")
    return {name: "" if one == UNKNOWN else one for name, one in found.items()}


def _environment(running: Serving, variables: Mapping[str, str]) -> dict[str, str]:
    urls = {name: f"redis://{running.addresses[service]}" for name, service in variables.items()}
    return {**os.environ, ADMIN_VARIABLE: running.admin, **urls}


# -- signals


@contextlib.contextmanager
def _signals_waiting() -> Iterator[None]:
    """Within the body, signals wait until they are asked for; those that are left at its end are dropped."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    try:
        yield
    finally:
        _is_interrupted()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_interrupted() -> bool:
    """Whether a signal that ends programs has come since the last call."""
    come = set()
    while (info := signal.sigtimedwait(_PASSED_ON, 0)) is not None:
        come.add(info.si_signo)
    return bool(come & _ENDING)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command, and pass signals on. Returns its exit code, as shells have it."""
    try:
        # Safe, because this process has one thread.
        process = subprocess.Popen(command, env=environment, preexec_fn=_before_exec())  # noqa: PLW1509
    except OSError as exc:
        say(f"keyfence: {command[0]} cannot be run: {exc.strerror}", err=True)
        return NOT_FOUND if isinstance(exc, FileNotFoundError) else NOT_EXECUTABLE
    while process.poll() is None:
        info = signal.sigtimedwait(_PASSED_ON | {signal.SIGCHLD}, 1.0)
        # The kernel sends the terminal's signals, Ctrl-C for example, to the command as well.
        if info is not None and info.si_signo != signal.SIGCHLD and info.si_code <= 0:
            process.send_signal(info.si_signo)
    _is_interrupted()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _before_exec() -> Callable[[], None]:
    """What the command's process does first: it takes all signals, and ends if this process is killed."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    return prepare


# -- the answer


def _judged(url: str, known: Sequence[Known], asked: _Asked) -> int:
    """Judge what the store has, and report it. Returns the gate's exit code."""
    judgement = judge(store_evidence(url), baseline=known, baseline_name=asked.baseline)
    if asked.write:
        return keep(judgement, known, asked.write)
    text = FORMATS[asked.form](judgement)
    if not asked.output:
        say(text.removesuffix("\n"), err=True)
        return judgement.outcome.exit_code
    try:
        with click.open_file(asked.output, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        fail(f"{asked.output} cannot be written: {exc.strerror}")
    return judgement.outcome.exit_code
