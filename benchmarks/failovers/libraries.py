"""The clients: redis-py in this process; ioredis, node-redis and redis-cli in processes of their own.

Rule: no library sends a request twice. On the control's path each uses its own support of Sentinels in the
form that reacts soonest. redis-cli has none, so it is told the address: by a Sentinel, after each error.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from benchmarks.failovers.clients import Client, Command, Failed, Hearer, Library, Route, Speaker
from tests.sentinel import NAME
from tests.servers import PROJECT

NODE = PROJECT / "tests" / "node"
LOOK_SECONDS = 0.1  # how long a subscriber waits for a message at once
SLOW = re.compile(r"\(\d+\.\d\ds\)\Z")  # redis-cli says how long a command took, from half a second on
REDIRECTED = "-> Redirected"  # and where it follows a redirect to
ENDED = "the process has ended"
ANSWER_SECONDS = 5.0  # how long redis-py waits for a reply


def clients(route: Route) -> list[Client]:
    """One client of each library that is installed."""
    return [Client(name, route.path, library) for name, library in libraries(route).items()]


def libraries(route: Route) -> dict[str, Library]:
    """The libraries that are installed."""
    made: dict[str, Library] = {"redis-py 2": RedisPy(route, 2), "redis-py 3": RedisPy(route, 3)}
    if shutil.which("node") and (NODE / "node_modules").is_dir():
        made |= {"ioredis": Node(route, "ioredis"), "node-redis": Node(route, "redis")}
    if shutil.which("redis-cli"):
        made["redis-cli"] = RedisCli(route)
    return made


def sentinel_of(route: Route) -> Sentinel:
    return Sentinel([("127.0.0.1", port) for port in route.sentinels])


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Errors of redis-py become Failed."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as exc:
        raise Failed(type(exc).__name__) from exc
    except redis.ReadOnlyError as exc:  # its text lacks the error's first word
        raise Failed("READONLY") from exc
    except redis.ResponseError as exc:
        raise Failed(str(exc).split(" ")[0]) from exc


class RedisPy:
    """redis-py, with one version of the protocol."""

    def __init__(self, route: Route, protocol: int) -> None:
        self._route, self._protocol = route, protocol

    def client(self) -> redis.Redis:
        options = {
            "protocol": self._protocol,
            "decode_responses": True,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": ANSWER_SECONDS,
        }
        if self._route.keyfence is None:
            return sentinel_of(self._route).master_for(NAME, **options)
        host, port = self._route.keyfence
        return redis.Redis(host, port, **options)  # type: ignore[arg-type]

    def speak(self) -> Speaker:
        return _RedisPySpeaker(self.client())

    def hear(self, channel: str) -> Hearer:
        return _RedisPyHearer(self.client(), channel)


class _RedisPySpeaker:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def ask(self, *commands: Command) -> list[object]:
        with _failures():
            if len(commands) == 1:
                return [self._client.execute_command(*commands[0])]
            with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return list(pipeline.execute())

    def close(self) -> None:
        with contextlib.suppress(redis.RedisError):
            self._client.close()


class _RedisPyHearer:
    def __init__(self, client: redis.Redis, channel: str) -> None:
        self._client = client
        self._subscription = client.pubsub()
        with _failures():
            self._subscription.subscribe(channel)

    def heard(self) -> bool:
        with _failures():
            return self._subscription.get_message(timeout=LOOK_SECONDS) is not None

    def close(self) -> None:
        self._subscription.close()
        self._client.close()


class Node:
    """A library of Node, driven by tests/node/failovers.js. `options` are its own, and for keyfence only."""

    def __init__(self, route: Route, library: str, **options: object) -> None:
        if route.keyfence:
            self._target: dict[str, object] = dict(zip(("host", "port"), route.keyfence, strict=True))
        else:
            nodes = [{"host": "127.0.0.1", "port": port} for port in route.sentinels]
            self._target = {"sentinels": nodes, "name": NAME}
        self._target |= {"library": library, "options": options}

    def speak(self) -> Speaker:
        return _NodeSpeaker(self._command())

    def hear(self, channel: str) -> Hearer:
        return _ProcessHearer(self._command(channel=channel))

    def _command(self, **more: str) -> list[str]:
        return ["node", str(NODE / "failovers.js"), json.dumps(self._target | more)]


class _NodeSpeaker:
    def __init__(self, command: Sequence[str]) -> None:
        self._lines = Lines(command)

    def ask(self, *commands: Command) -> list[object]:
        answer = json.loads(self._lines.ask(json.dumps(commands)))
        if "error" in answer:
            raise Failed(answer["error"])
        return list(answer["replies"])

    def close(self) -> None:
        self._lines.close()


class RedisCli:
    """redis-cli, which connects again by itself after an error, and does not send the request again."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._sentinel = sentinel_of(route)

    def speak(self) -> Speaker:
        return CliSpeaker(self._address)

    def hear(self, channel: str) -> Hearer:
        return _ProcessHearer([*_cli(self._address()), "SUBSCRIBE", channel])

    def _address(self) -> tuple[str, int]:
        if self._route.keyfence:
            return self._route.keyfence
        try:
            host, port = self._sentinel.discover_master(NAME)
        except MasterNotFoundError as exc:
            raise Failed(type(exc).__name__) from exc
        return str(host), int(port)


def _cli(address: tuple[str, int]) -> list[str]:
    return ["redis-cli", "--no-raw", "-h", address[0], "-p", str(address[1])]


class CliSpeaker:
    """redis-cli with these options. `address` says where to connect, at the start and after each error."""

    def __init__(self, address: Callable[[], tuple[str, int]], *options: str) -> None:
        self._find = address
        self._options = options
        self._address: tuple[str, int] | None = None  # that the process connects to
        self._lines: Lines | None = None

    def ask(self, *commands: Command) -> list[object]:
        return [self._ask(command) for command in commands]

    def ask_at_once(self, commands: Sequence[Command]) -> list[object]:
        """Writes all commands before the first reply is read. A Failed stands in the place of its reply."""
        try:
            self._write(commands)
        except Failed as exc:
            return [exc] * len(commands)
        replies: list[object] = []
        for _ in commands:
            try:
                replies.append(self._read())
            except Failed as exc:
                replies.append(exc)
        return replies

    def _ask(self, command: Command) -> object:
        self._write([command])
        return self._read()

    def _write(self, commands: Sequence[Command]) -> None:
        if self._lines is None:
            self._start()
        assert self._lines is not None
        self._lines.write("".join(f"{' '.join(one)}\n" for one in commands))

    def _read(self) -> object:
        if self._lines is None:  # it was closed after an error
            raise Failed(ENDED)
        line = self._lines.read()
        while SLOW.match(line) or line.startswith(REDIRECTED):
            line = self._lines.read()
        if line.startswith("(error) "):
            raise Failed(line.split(" ")[1])
        if line.startswith(("Error: ", "Could not connect")):
            self._follow()
            raise Failed("Connection refused" if line.startswith("Could") else line.removeprefix("Error: "))
        if line.startswith("(integer) "):
            return int(line.removeprefix("(integer) "))
        return None if line == "(nil)" else json.loads(line) if line.startswith('"') else line

    def _start(self) -> None:
        self._address = self._find()
        self._lines = Lines([*_cli(self._address), *self._options])
        if self._lines.ask("PING") != "PONG":
            self.close()
            raise Failed("Connection refused")

    def _follow(self) -> None:
        """Start it anew if the primary is at another address by now."""
        with contextlib.suppress(Failed):
            if self._find() != self._address:
                self.close()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None


@contextlib.contextmanager
def _ended() -> Iterator[None]:
    """Errors of a pipe become Failed."""
    try:
        yield
    except (OSError, ValueError) as exc:  # ValueError: it was closed here
        raise Failed(ENDED) from exc


class Lines:
    """A process that answers each line with one line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def ask(self, line: str) -> str:
        self.write(f"{line}\n")
        return self.read()

    def write(self, lines: str) -> None:
        assert self._process.stdin is not None
        with _ended():
            self._process.stdin.write(lines)
            self._process.stdin.flush()

    def read(self) -> str:
        assert self._process.stdout is not None
        with _ended():
            answer = self._process.stdout.readline()
        if not answer:
            raise Failed(ENDED)
        return answer.rstrip("\n")

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError), self._process:
            pass


class _ProcessHearer:
    """A process that subscribes and prints lines for what it hears."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )

    def heard(self) -> bool:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], LOOK_SECONDS)[0]:
            return False
        if not self._process.stdout.read(65536):
            raise Failed("the subscription has ended")
        return True

    def close(self) -> None:
        self._process.kill()
        with self._process:
            pass
