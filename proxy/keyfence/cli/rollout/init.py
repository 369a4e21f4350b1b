"""`keyfence init`: five questions, and the files to begin with.

Rule: every file works as it is written: the policy passes `check`, its tests pass, and keyfence runs with the
configuration. No file that exists is overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from keyfence.authoring.learn.requirements import quoted
from keyfence.cli.terminal.options import parsed
from keyfence.cli.terminal.output import fail, say
from keyfence.config.upstream import upstream_of
from keyfence.policy.services import UNKNOWN

from .draft import NAME, name_of

_FIRST_PORT = 7101
_LOCAL = ("127.0.0.1", "localhost", "::1")


class Answers(NamedTuple):
    """The answers to the five questions."""

    name: str
    services: tuple[str, ...]
    by: str  # listener, user or network
    redis: str
    document: bool


def _services(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(filter(None, re.split("[,\\s]+", text))))
    if not found:
        raise click.BadParameter("name at least one service")
    for one in found:
        if not NAME.fullmatch(one) or one == UNKNOWN:
            raise click.BadParameter(f"{one!r} is not a name for a service; write letters, digits, - and _")
    return found


class _Services(click.ParamType[tuple[str, ...]]):
    name = "services"

    def convert(
        self, value: object, _parameter: click.Parameter | None, _context: click.Context | None
    ) -> tuple[str, ...]:
        """Reads an answer; one that was read already stays."""
        return value if isinstance(value, tuple) else _services(str(value))


def _redis(text: str) -> str:
    upstream_of(text)
    return text


@click.command()
@click.argument("folder", metavar="[FOLDER]", default=".")
@click.option(
    "--name", prompt="1/5  What is the policy called (often the prefix of the keys)",
    callback=parsed(name_of), help="The policy's name.",
)  # fmt: skip
@click.option(
    "--services", prompt="2/5  Which services use this Redis (names, with commas)", type=_Services(),
    metavar="NAMES", help="The services, with commas.",
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
    "--document/--no-document", prompt="5/5  Does a document say what the keys look like", default=False,
    help="Whether a document describes the keys.",
)  # fmt: skip
def init(folder: str, name: str, services: tuple[str, ...], by: str, redis: str, document: bool) -> None:
    """Ask five questions, and write policy, configuration, tests and a compose file to begin with.

    Options answer questions beforehand. With a document, the policy has a scope and an example entry for each
    service, to be replaced by the document's table. Without one, it only names the services: record what they
    do, and let keyfence draft propose the policy.
    """
    answers = Answers(name, services, by, redis, document)
    files = dict(_files(answers))
    where = Path(folder)
    there = [one for one in files if (where / one).exists()]
    if there:
        fail(f"{where / there[0]} exists; name another folder")
    try:
        where.mkdir(parents=True, exist_ok=True)
        for file, lines in files.items():
            (where / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as exc:
        fail(f"{exc.filename}: {exc.strerror}")
    config = where / "keyfence.yaml"
    say(f"Written to {where}: {', '.join(files)}. Next:")
    say(f"  keyfence test {where}")
    if document:
        say(f"  keyfence run --config {config}")
    else:
        say(f"  keyfence run --config {config} --record {where / 'commands.log'}     # for some days")
        say(f"  keyfence draft {where / 'commands.log'} --name {name} -o {where / (name + '.yaml')}")


def _files(answers: Answers) -> Iterator[tuple[str, list[str]]]:
    yield "policy.yaml", list(_policy(answers) if answers.document else _blank(answers))
    yield "policy.test.yaml", list(_tests(answers))
    yield "keyfence.yaml", list(_config(answers, "127.0.0.1", answers.redis, "127.0.0.1:9464"))
    inside = "redis://redis:6379" if _is_local(answers.redis) else answers.redis
    yield "keyfence.container.yaml", list(_config(answers, "0.0.0.0", inside, "0.0.0.0:9464"))
    yield "compose.yaml", list(_compose(answers))


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in _LOCAL


def _blank(answers: Answers) -> Iterator[str]:
    yield "# This policy only names the services. keyfence reports every key, and refuses none in observe."
    yield "# Record what services do (keyfence run --record), and let `keyfence draft` propose the entries."
    yield f"policy: {answers.name}"
    yield 'owner: {team: "", contact: ""}   # every refusal names the contact'
    yield f"services: [{', '.join(answers.services)}]"


def _policy(answers: Answers) -> Iterator[str]:
    yield "# Go through your document, and write an entry for each row of its table of keys."
    yield f"policy: {answers.name}"
    yield 'owner: {team: "", contact: ""}   # every refusal names the contact'
    yield f'claims: ["{answers.name}:"]   # every key begins so'
    yield f"services: [{', '.join(answers.services)}]"
    yield ""
    yield "placeholders:"
    yield '  id: "[A-Za-z0-9_.-]{1,128}"   # no colon, so that an id cannot reach into another kind of key'
    yield ""
    yield "scopes:   # which part of the keys belongs to whom"
    for one in answers.services:
        yield f"  {one}: {{prefix: {quoted(f'{answers.name}:{one}:')}, writers: [{one}]}}"
    yield ""
    yield "keys:   # examples: replace them"
    for one in answers.services:
        key = quoted(f"{answers.name}:{one}:example:<id>")
        yield f"  {one}-example: {{key: {key}, type: string, ttl: {{max: 1h}}}}"


def _tests(answers: Answers) -> Iterator[str]:
    first = answers.services[0]
    yield "policy: policy.yaml"
    yield "tests:"
    yield f"  - {{about: a ping, service: {first}, command: PING, verdict: allow}}"
    if not answers.document:
        command = '"GET a:1", rules: [key.unregistered]'
        yield f"  - {{about: no key is known yet, service: {first}, command: {command}}}"
        return
    for one in answers.services:
        key = f"{answers.name}:{one}:example:1"
        command = quoted(f"SET {key} x EX 60")
        yield f"  - {{about: {one} writes its keys, service: {one}, command: {command}, verdict: allow}}"
        command = f"{quoted(f'GET {key}')}, rules: [scope.read]"
        yield f"  - {{about: others do not read them, service: unknown, command: {command}}}"


def _config(answers: Answers, host: str, redis: str, admin: str) -> Iterator[str]:
    yield "policy: policy.yaml"
    yield f"upstream: {quoted(redis)}"
    yield f"admin: {quoted(admin)}"
    yield "listeners:"
    if answers.by == "listener":
        for port, one in enumerate(answers.services, _FIRST_PORT):
            yield f'  - {{listen: "{host}:{port}", service: {one}}}'
    else:
        yield f'  - {{listen: "{host}:{_FIRST_PORT}"}}'
    if answers.by == "user":
        yield "identify:"
        yield f"  users: {{{', '.join(f'{one}: {one}' for one in answers.services)}}}   # Redis user: service"
    elif answers.by == "network":
        yield "identify:"
        yield "  networks:   # examples: write the networks of your services"
        for number, one in enumerate(answers.services, 1):
            yield f'    "10.0.{number}.0/24": {one}'
    yield "modes:"
    yield "  - {mode: observe}   # nothing is refused; keyfence ready says which rule can be enforced"


def _compose(answers: Answers) -> Iterator[str]:
    listeners = len(answers.services) if answers.by == "listener" else 1
    ports = range(_FIRST_PORT, _FIRST_PORT + listeners)
    yield "# docker build -t keyfence .   in keyfence's own folder makes the image."
    yield "services:"
    yield "  keyfence:"
    yield "    image: keyfence"
    yield '    command: ["run", "--config", "/etc/keyfence/own/keyfence.container.yaml"]'
    yield "    read_only: true"
    yield "    tmpfs: [/tmp]"
    yield '    volumes: [".:/etc/keyfence/own:ro", "findings:/var/lib/keyfence"]'
    published = (quoted(f"127.0.0.1:{port}:{port}") for port in (*ports, 9464))
    yield f"    ports: [{', '.join(published)}]"
    if _is_local(answers.redis):
        yield "    depends_on: [redis]"
        yield "  redis:"
        yield '    image: "redis:7"'
    yield "volumes:"
    yield "  findings: {}"
