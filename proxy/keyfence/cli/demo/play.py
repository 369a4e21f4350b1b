"""`keyfence demo`: plays a minute of CubeSandbox traffic, mistakes included, and shows the findings.

Rule: at its end the demo has stopped everything that it started and deleted everything that it wrote. It
changes no mode of a running keyfence, and touches no key that was in that keyfence's Redis before.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rich.console import Console

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.loading.load import load_policy

from .player import DemoError, Outcome, Player, connected, heed_cancellation
from .private import ENFORCE, ON_THE_WAY, Private, private_keyfence
from .running import addresses_of, clean_up, difference, rows_of, spare
from .shown import console, print_found, print_got, print_passed, say
from .traffic import PROXY, SERVICES, SIDECAR, Minute, new_tag

PAUSE = 0.04  # seconds between two commands while the page is open: 25 commands a second
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def play_through(admin: str) -> None:
    """Plays the traffic through a running keyfence, and prints the findings. Raises DemoError."""
    _run(_play_through(admin))


def play_privately(policy: Path, *, copied: bool, stays: bool) -> None:
    """Plays the traffic through a keyfence of the demo's own, in observe and in enforce, and prints what
    happens. Raises DemoError, FileError.

    `policy` is its file, of which it runs a copy if `copied`. `stays`: the page stays up until a signal.
    """
    _check_services(load_policy(policy))
    _run(_play_privately(policy, copied, stays))


def _run(job: Awaitable[None]) -> None:
    try:
        asyncio.run(_until_ended(job))
    except asyncio.CancelledError as exc:
        raise DemoError(str(exc)) from None


async def _until_ended(job: Awaitable[None]) -> None:
    """Awaits the job. A signal cancels it, so that it cleans up; later signals do not disturb that. Raises
    KeyboardInterrupt for Ctrl-C, and CancelledError with a message for the others."""
    task = asyncio.current_task()
    assert task is not None
    came: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        came.append(number)
        if len(came) == 1:
            task.cancel()

    _on_signals(end)
    try:
        await job
    except (asyncio.CancelledError, DemoError):  # redis-py may turn the one into the other
        if not came:
            raise
    if came:
        if came[0] == signal.SIGINT:
            raise KeyboardInterrupt
        raise asyncio.CancelledError(f"ended by {came[0].name}")


def _on_signals(act: Callable[[signal.Signals], None]) -> None:
    """Have the signals that end programs do this instead, except those that are ignored."""
    with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread, or on Windows
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, act, number)


async def _play_privately(policy: Path, copied: bool, stays: bool) -> None:
    out = console()
    async with private_keyfence(policy, copied=copied) as own:
        say(out, f"The page is at {own.admin}/")
        say(out, "It is that of a private keyfence, in front of a Redis of its own.")
        say(out, "")
        addresses = addresses_of(own.admin)
        own.compare()
        out.print("[bold]1. observe[/]: everything passes; these are the findings")
        outcomes = await minute(addresses)
        print_found(out, rows_of(own.admin))
        print_passed(out, outcomes)
        own.set_modes(ENFORCE)
        out.print("\n[bold]2. enforce[/]: the same minute again; these are the replies")
        outcomes = await minute(addresses)
        print_got(out, outcomes)
        print_passed(out, outcomes, ": a waiver covers them, or the policy only advises against them")
        if stays:
            await _stay(own, addresses, out)
    out.print("\nEverything has stopped, and nothing is left behind.")


async def minute(addresses: dict[str, tuple[str, int]], tag: str = "") -> Sequence[Outcome]:
    """Plays one minute with this tag, or else a new one. Raises DemoError."""
    async with connected(addresses) as player:
        await player.play(Minute(tag or new_tag()).steps())
    return player.outcomes


async def _stay(own: Private, addresses: dict[str, tuple[str, int]], out: Console) -> None:
    """Leaves the page up, with traffic, until a signal comes. That is the normal end."""
    heed_cancellation()
    own.set_modes(ON_THE_WAY)
    out.print(f"\n[bold]The page is at {own.admin}/[/]; Ctrl-C ends everything.")
    say(out, f"To change something there, sign in with the token {own.token}.")
    say(out, f"The services go on; now only {PROXY} and {SIDECAR} are enforced.")
    ended = asyncio.Event()
    _on_signals(lambda _: ended.set())
    async with connected(addresses) as player:
        tasks = [asyncio.ensure_future(one) for one in (_go_on(player), ended.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if not ended.is_set():
                task.result()


async def _go_on(player: Player) -> None:
    while True:
        await player.play(Minute(new_tag()).steps(), PAUSE)
        player.outcomes.clear()


def _check_services(policy: CompiledPolicy) -> None:
    missing = [service for service in SERVICES if service not in policy.services]
    if missing:
        known = did_you_mean(missing[0], policy.services)
        raise DemoError(
            f"the policy {policy.name} has no service {', '.join(missing)}{known}; the demo needs "
            "CubeSandbox' services"
        )


async def _play_through(admin: str) -> None:
    addresses = addresses_of(admin)
    out = console()
    say(out, f"The page is at {admin}/")
    say(out, "The keyfence there keeps its configured modes.")
    say(out, "")
    async with connected(addresses) as player:
        steps, left_out = await spare(player, list(Minute(new_tag()).steps()))
        for what in left_out:
            say(out, f"Left out: {what}.")
        before = rows_of(admin)
        try:
            await player.play(steps)
            found = difference(rows_of(admin), before)
        finally:
            left = await clean_up(player)
    out.print("[bold]Findings[/]")
    print_found(out, found)
    out.print("\n[bold]Replies to the clients[/]")
    print_got(out, player.outcomes)
    print_passed(out, player.outcomes)
    if left:
        raise DemoError(f"could not delete these keys of the demo: {', '.join(left)}")
    say(out, "")
    say(
        out,
        "The demo has deleted the keys that it wrote (keyfence counts violations of these commands too).",
    )
