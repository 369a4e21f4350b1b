"""The store that an option names: a folder, or a Redis.

Rule: a password is named by a reference, since process listings show arguments. No message shows one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from keyfence.cli.terminal.options import value_option
from keyfence.cli.terminal.output import fail, say
from keyfence.config.references import BadReference, is_plain_password, resolved
from keyfence.fleet.folder_store import FolderStore
from keyfence.fleet.manifest import check_name
from keyfence.fleet.redis_url import parse_redis_url
from keyfence.fleet.store import Store, StoreError
from keyfence.policy.show import one_line

if TYPE_CHECKING:
    from keyfence.fleet.redis_candidate import RedisCandidate

STORE = "STORE"
STORE_VARIABLE = "KEYFENCE_STORE"
_HELP = "The store: a folder, redis://HOST:PORT, or file:PATH of a file that holds such a URL."
_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def store_option(option: str) -> Callable[[_Command], _Command]:
    """Adds the option that names the store."""
    more: dict[str, Any] = {"envvar": STORE_VARIABLE, "show_envvar": True, "required": True}
    return value_option(f"{option} place", STORE, _HELP, **more)


def ca_option(command: _Command) -> _Command:
    about = "Authorities that may have signed the certificate of a rediss:// store, PEM."
    return value_option("--ca", "FILE", about)(command)


def name_option(**more: Any) -> Callable[[_Command], _Command]:
    """Adds --name."""
    return value_option("--name", "NAME", "The name under which the policy is published.", **more)


def store_of(place: str, name: str, ca: str) -> Store:
    """The store of the policy of this name. Ends the command if there can be none."""
    try:
        check_name(name)
    except ValueError as exc:
        fail(f"--name: {exc}")
    if not place:
        fail("the store: it has no name; name a folder, or a Redis by its URL")
    is_url = "://" in place
    if is_url and is_plain_password(place) and _is_argument():
        say(
            "keyfence: the store's URL holds a password, and process listings show it; "
            "write file:PATH or '${NAME}' instead",
            err=True,
        )
    try:
        url = resolved(place, Path(), may_be_file=True, is_url=True)
        if not is_url and url == place:
            return FolderStore(Path(place), name)
        redis = parse_redis_url(url)
    except (BadReference, ValueError) as exc:
        fail(f"the store: {exc}")
    from keyfence.fleet.redis_store import RedisStore

    return RedisStore(redis, name, ca)


def candidate_of(store: Store) -> RedisCandidate:
    """The candidate beside the versions in a store. Ends the command if the store can have none."""
    if isinstance(store, FolderStore):
        fail(f"{store.shown} is a folder, and candidates are in a Redis; name redis://HOST:PORT")
    from keyfence.fleet.redis_candidate import RedisCandidate
    from keyfence.fleet.redis_store import RedisStore

    assert isinstance(store, RedisStore)
    return RedisCandidate(store)


def _is_argument() -> bool:
    """Whether the store was named by an argument, and not by the environment."""
    source = click.get_current_context().get_parameter_source("place")
    return source is click.core.ParameterSource.COMMANDLINE


def asked(question: Coroutine[Any, Any, _T]) -> _T:
    """The answer of a store. Ends the command with code 1 if there is none."""
    try:
        return asyncio.run(question)
    except StoreError as exc:
        fail(one_line(str(exc)), 1)
    except ValueError as exc:
        fail(one_line(str(exc)))
