"""`keyfence init`: five questions, and the files to begin with.

Rule: every file works as it is written: the policy passes `check`, its tests pass, and keyfence runs with the
configuration. No file that exists is overwritten. Only its owner can read a file with a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from keyfence.authoring.export.render import code_templates
from keyfence.authoring.learn.requirements import quoted
from keyfence.cli.terminal.options import is_given, parsed
from keyfence.cli.terminal.output import fail, say
from keyfence.config.references import FILE, variables_in
from keyfence.config.upstream import upstream_of
from keyfence.policy.loading.load import load_policy
from keyfence.policy.services import UNKNOWN

from .draft import NAME, name_of

_FIRST_PORT = 7101
_INSIDE = "redis://redis:6379"  # the same Redis, from the container
_LOCAL = ("127.0.0.1", "localhost", "::1")


def _services(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(filter(None, re.split("[,\\s]+", text))))
    if not found:
        raise click.BadParameter("name at least one service")
    for one in found:
        if not NAME.fullmatch(one) or one == UNKNOWN:
            raise click.BadParameter(f"{one!r} is not a name for a service; write letters, digits, - and _")
    return found


class _Services(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    name = "services"

    def convert(
        self, value: object, _parameter: click.Parameter | None, _context: click.Context | None
    ) -> tuple[str, ...]:
        """Reads an answer; one that was read already stays."""
        return value if isinstance(value, tuple) else _services(str(value))


def _from_policy(context: click.Context, _parameter: click.Parameter, file: str) -> str:
    """Takes the answers that a policy gives from it, so that they are not asked for."""
    if file:
        policy = load_policy(Path(file))
        services = tuple(one for one in policy.services if one != UNKNOWN)
        context.default_map = {"name": policy.name, "services": services, "document": False}
    return file


class _Question(click.Option):
    """An option that is asked for, unless a policy has answered it."""

    def prompt_for_value(self, ctx: click.Context) -> Any:
        known = (ctx.default_map or {}).get(self.name or "")
        return super().prompt_for_value(ctx) if known is None else known


def _redis(text: str) -> str:
    upstream_of(text)
    return text


@click.command()
@click.argument("folder", metavar="[FOLDER]", default=".")
@click.option(
    "--policy", metavar="FILE", default="", is_eager=True, callback=_from_policy,
    help="A policy that is there, such as a draft: write only what runs it.",
)  # fmt: skip
@click.option(
    "--name", cls=_Question, prompt="1/5  What is the policy called (often the prefix of the keys)",
    callback=parsed(name_of), help="The policy's name.",
)  # fmt: skip
@click.option(
    "--services", cls=_Question, prompt="2/5  Which services use this Redis (names, with commas)",
    type=_Services(), metavar="NAMES", help="The services, with commas.",
)  # fmt: skip
@click.option(
    "--by", prompt="3/5  How are they told apart", type=click.Choice(["listener", "user", "network"]),
    default="listener", help="How services are told apart: a port for each, a Redis user, or a network.",
)  # fmt: skip
@click.option(
    "--redis", prompt="4/5  Where is the Redis", default="redis://127.0.0.1:6379", callback=parsed(_redis),
    help="URL of the Redis.",
)  # fmt: skip
@click.option(
    "--document/--no-document", cls=_Question, prompt="5/5  Does a document say what the keys look like",
    default=False, help="Whether a document describes the keys.",
)  # fmt: skip
def init(
    folder: str, policy: str, name: str, services: tuple[str, ...], by: str, redis: str, document: bool
) -> None:
    """Ask five questions, and write policy, configuration, tests and a compose file to begin with.

    Options answer questions beforehand. With a document, the policy has a scope and an example entry for each
    service, to be replaced by the document's table. Without one, it only names the services: record what they
    do, and let keyfence draft propose the policy. Of a policy that is there, only two questions are left.
    """
    where = Path(folder)
    if policy:
        context = click.get_current_context()
        for option in ("name", "services", "document"):
            if is_given(context, option):
                fail(f"--{option} and --policy cannot be given together: the policy says it")
    inside = os.path.relpath(policy, where) if policy else ""
    if inside.startswith(".."):
        fail(f"the policy must be in the folder {where}, which its container sees; name its folder")
    files = dict(_files(name, services, by, redis, document, inside))
    there = [one for one in files if (where / one).exists()]
    if there:
        keep = "" if policy else ", or keep this policy with --policy"
        fail(f"{where / there[0]} exists; name another folder{keep if there[0] == 'policy.yaml' else ''}")
    try:
        where.mkdir(parents=True, exist_ok=True)
        secret = [file for file, text in files.items() if _write(where / file, text, _secret_in(redis))]
    except OSError as exc:
        fail(f"{exc.filename}: {exc.strerror}")
    config = where / "keyfence.yaml"
    say(f"Written to {where}: {', '.join(files)}. Next:")
    say(f"  keyfence check {config}" if policy else f"  keyfence test {where}")
    if document or policy:
        say(f"  keyfence run --config {config}")
    else:
        say(f"  keyfence run --config {config} --record {where / 'commands.log'}     # for some days")
        say(f"  keyfence draft {where / 'commands.log'} --name {name} -o {where / (name + '.yaml')}")
    if secret:
        text = (
            f"the password is in {' and '.join(secret)}, which only you can read, and no container's user; "
        )
        say(f"keyfence: {text}write ${{NAME}} or file:PATH in its place", err=True)


def _secret_in(redis: str) -> str:
    """The URL as files have it, if a password is written in it; "" if not: a variable or a file has it."""
    password = "" if redis.startswith(FILE) else urlsplit(redis).password or ""
    return "" if not password or "${" in password else quoted(redis)


def _write(path: Path, text: str, secret: str) -> bool:
    """Writes a new file. Returns whether it holds the secret, if there is one. Raises OSError."""
    is_secret = bool(secret) and secret in text
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600 if is_secret else 0o666), "w", encoding="utf-8") as file:
        file.write(text)
    return is_secret


def _files(
    name: str, services: Sequence[str], by: str, redis: str, document: bool, policy: str
) -> Iterator[tuple[str, str]]:
    """The files to begin with: the name and text of each. `policy`: one that is there; "": there is none."""
    templates = code_templates("keyfence.cli.rollout", quoted=quoted)
    ports = [_FIRST_PORT + number for number in range(len(services) if by == "listener" else 1)]
    is_local = urlsplit(redis).hostname in _LOCAL
    here = {"redis": redis, "host": "127.0.0.1", "admin": "127.0.0.1:9464"}
    inside = {"redis": _INSIDE if is_local else redis, "host": "0.0.0.0", "admin": "0.0.0.0:9464"}
    answers = {
        "name": name,
        "services": services,
        "by": by,
        "document": document,
        "policy": policy or "policy.yaml",
        "ports": ports,
        "is_local": is_local,
        "variables": variables_in(inside["redis"]),
    }
    for file, template, place in (
        ("policy.yaml", "policy.yaml", here),
        ("policy.test.yaml", "policy.test.yaml", here),
        ("keyfence.yaml", "keyfence.yaml", here),
        ("keyfence.container.yaml", "keyfence.yaml", inside),
        ("compose.yaml", "compose.yaml", here),
    ):
        if policy and file.startswith("policy."):
            continue
        yield file, templates.get_template(f"{template}.jinja").render(**answers, **place)
