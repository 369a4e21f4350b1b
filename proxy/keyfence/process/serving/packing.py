"""A policy and its configuration in a form for another process.

Rule: a process that serves clients unpacks in pieces, so that no client waits for more than one piece.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import pickle
import time
from collections.abc import Callable
from typing import NamedTuple

from keyfence.config.settings import Settings
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.source.files import NOTHING_SEEN, Seen

from .garbage import with_small_collections, without_collections

PIECE_SECONDS = 0.0002  # of work; unpickling keeps the interpreter's lock meanwhile
PAUSE_SECONDS = 0.001  # after each piece


class Packed(NamedTuple):
    """Settings and policy in a form for another process."""

    settings: Settings
    policy: bytes | None  # a pickled CompiledPolicy, behind its parts; None: splice mode
    name: str = ""  # of the policy
    revision: str = ""
    seen: Seen = NOTHING_SEEN  # the files that it was made of


def pack(settings: Settings, policy: CompiledPolicy | None) -> Packed:
    """Pack for another process, without the files' texts: only messages about faults need them."""
    bare = dataclasses.replace(settings, source=None, waivers_source=None)
    if policy is None:
        return Packed(bare, None)
    into = io.BytesIO()
    pickler = pickle.Pickler(into, pickle.HIGHEST_PROTOCOL)
    # Nearly all of a policy are its targets and the automata. They come one by one, and the policy refers to
    # them.
    classifiers = (policy.classifier, policy.channel_classifier)
    parts = (*policy.targets, *(one.automaton for one in classifiers), *classifiers)
    for part in (len(parts), *parts, policy):
        pickler.dump(part)
    return Packed(bare, into.getvalue(), policy.name, policy.revision)


def unpack(packed: Packed) -> CompiledPolicy | None:
    """Returns the policy."""
    with without_collections():
        return _unpacked(packed, lambda: None)


async def unpack_beside(packed: Packed) -> CompiledPolicy | None:
    """Returns the policy while this process serves clients."""
    return await asyncio.to_thread(_unpack_in_pieces, packed)


def _unpack_in_pieces(packed: Packed) -> CompiledPolicy | None:
    began = time.perf_counter()

    def pause() -> None:
        nonlocal began
        if time.perf_counter() - began > PIECE_SECONDS:
            time.sleep(PAUSE_SECONDS)
            began = time.perf_counter()

    with with_small_collections():
        return _unpacked(packed, pause)


def _unpacked(packed: Packed, each: Callable[[], None]) -> CompiledPolicy | None:
    """Calls `each` after each part."""
    if packed.policy is None:
        return None
    unpickler = pickle.Unpickler(io.BytesIO(packed.policy))
    for _ in range(unpickler.load()):
        unpickler.load()
        each()
    policy: CompiledPolicy = unpickler.load()
    # This builds the automata of the waivers before the policy is put in force: all clients would wait for
    # them then.
    Modes(packed.settings.modes, policy.services, packed.settings.waived())
    return policy
