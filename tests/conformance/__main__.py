"""Checks a proxy for Redis: `python -m tests.conformance [TARGET [--direct DIRECT]]`.

TARGET is the proxy's address, DIRECT that of the Redis behind it or of one node of
the Redis Cluster: HOST:PORT, or redis://USER:PASSWORD@HOST:PORT. Without TARGET a
Redis and then a Redis Cluster are started on loopback, with keyfence in front of
each. FLUSHALL is among the checks, so the servers must hold no keys.

The exit code is 0 if no check failed, 1 if one did, 2 if nothing could be checked.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.cluster import NO_CLUSTER, cluster_binary
from tests.conformance import started
from tests.conformance.check import CHECKS, Check, Result
from tests.conformance.report import WIDTH, as_json, has_failed, lines_of, summary
from tests.conformance.run import run
from tests.conformance.trial import Place, Unreachable, look
from tests.conformance.wire import Address
from tests.servers import NO_SERVER, server_binaries


def address(text: str) -> Address:
    """Reads HOST:PORT or a redis:// URL. Raises ArgumentTypeError with what would be right."""
    form = "HOST:PORT or redis://USER:PASSWORD@HOST:PORT"
    if "://" not in text:
        text = f"redis://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_public(text)} has no port such as 6379; write {form}") from None
    if parts.scheme != "redis":
        raise argparse.ArgumentTypeError(
            f"{parts.scheme}:// is not spoken here; write {form} of a port without TLS"
        )
    if not parts.hostname or port is None:
        raise argparse.ArgumentTypeError(f"{_public(text)} lacks a host or a port; write {form}")
    return Address(parts.hostname, port, unquote(parts.username or ""), unquote(parts.password or ""))


def _public(text: str) -> str:
    """An address without its scheme and login."""
    return text.removeprefix("redis://").rpartition("@")[2] or "the address"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    opening, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m tests.conformance",
        description=opening,
        epilog=rest,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("target", nargs="?", type=address, metavar="TARGET", help="the proxy")
    parser.add_argument("--direct", type=address, metavar="DIRECT", help="the Redis behind it")
    parser.add_argument(
        "--disturb",
        action="store_true",
        help="move a hash slot, let a replica take over, end a primary for good",
    )
    parser.add_argument("--flush", action="store_true", help="remove the keys that are there")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="only the checks whose group or sentence has these words"
    )
    parser.add_argument("--name", default="", help="what the proxy is called in the results")
    parser.add_argument(
        "--json", type=Path, metavar="FOLDER", help="also write the results there, as NAME.json"
    )
    parser.add_argument("--list", action="store_true", help="print the checks and run none")
    options = parser.parse_args(arguments)
    if options.direct and not options.target:
        parser.error("--direct is for a TARGET: give the proxy's address first")
    if options.disturb and options.target and not options.direct:
        parser.error("--disturb needs one node of the cluster: --direct HOST:PORT")
    return options


@contextlib.contextmanager
def _places(
    options: argparse.Namespace,
) -> Iterator[list[tuple[str, contextlib.AbstractContextManager[Place]]]]:
    """The proxies to check, each with its name."""
    if options.target:
        place = look(options.target, options.direct, flush=options.flush, disturbs=options.disturb)
        yield [(options.name or str(options.target), contextlib.nullcontext(place))]
        return
    if not server_binaries():
        raise Unreachable(NO_SERVER)
    with tempfile.TemporaryDirectory(prefix="keyfence-conformance-") as folder:
        os.environ.setdefault("XDG_STATE_HOME", folder)
        places = [(started.ONE, started.before_one_redis(Path(folder)))]
        if cluster_binary() is None:
            print(f"only one Redis is tried: {NO_CLUSTER}")
        else:
            places.append((started.CLUSTER, started.before_a_cluster(Path(folder), disturbs=True)))
        yield places


def _chosen(words: str) -> list[Check]:
    from tests.conformance import checks  # noqa: F401  # it fills CHECKS

    found = [check for check in CHECKS if words.lower() in f"{check.group}: {check.sentence}".lower()]
    if not found:
        raise Unreachable(f"no check has the words {words!r}: --list prints them")
    return found


def _check(name: str, place: Place, checks: Sequence[Check]) -> list[Result]:
    """Runs the checks and prints each result as it comes."""
    behind = f", before {place.server}" if place.server else ""
    print(f"{name} at {place.target}{behind}")
    group = ""

    def show(result: Result) -> None:
        nonlocal group
        if result.group != group:
            group = result.group
            print(f"\n{group}")
        print("\n".join(lines_of(result)), flush=True)

    results = run(place, checks, show)
    print(f"\n{name}\n" + "\n".join(summary(results)) + "\n", flush=True)
    return results


def main(arguments: Sequence[str]) -> int:
    """Runs the checks. Returns the exit code."""
    options = _options(arguments)
    try:
        checks = _chosen(options.only)
        if options.list:
            print("\n".join(f"{check.group}: {check.sentence}"[:WIDTH] for check in checks))
            return 0
        if options.json:
            options.json.mkdir(parents=True, exist_ok=True)
        failed = False
        with _places(options) as places:
            for name, start in places:
                with start as place:
                    results = _check(name, place, checks)
                    failed = failed or has_failed(results)
                    if options.json:
                        path = options.json / f"{''.join(c if c.isalnum() else '-' for c in name)}.json"
                        path.write_text(as_json(name, place, results))
                        print(f"written to {path}")
    except (Unreachable, OSError) as error:
        print(textwrap.fill(f"conformance: {error}", WIDTH, break_on_hyphens=False), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("conformance: ended by Ctrl-C", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
