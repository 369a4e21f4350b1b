"""Runs the services of an invented shop, each as a process of its own, for some orders.

Its argument is a file with the address of each service's Redis: `direct.env` or `keyfence.env`. Exit code 0:
every service got the replies that it expected.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
TOGETHER = ("orders", "payments", "mailer", "storefront")  # the catalog is ready before they begin


def addresses(file: str) -> dict[str, str]:
    """Reads lines such as `ORDERS_REDIS=redis://127.0.0.1:7103`."""
    lines = [line.strip() for line in Path(file).read_text().splitlines()]
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    return {name.removesuffix("_REDIS").lower(): url for name, url in pairs}


def start(name: str, urls: Mapping[str, str], given: argparse.Namespace) -> subprocess.Popen[bytes]:
    arguments = ["--url", urls[name], "--orders", str(given.orders), "--seed", str(given.seed)]
    if name == "payments":
        program = ["node", str(HERE / "payments.js"), "--release", str(given.payments)]
    else:
        program = [sys.executable, str(HERE / f"{name}.py")]
    return subprocess.Popen([*program, *arguments], stdout=subprocess.DEVNULL)


def finish(running: Mapping[str, subprocess.Popen[bytes]]) -> list[str]:
    """Waits for all services. If one fails, the others are stopped. Returns those that failed."""
    try:
        while any(service.poll() is None for service in running.values()):
            if any(service.poll() for service in running.values()):
                break
            time.sleep(0.05)
        return [name for name, service in running.items() if service.poll()]
    finally:
        for service in running.values():
            if service.poll() is None:
                service.terminate()
            service.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addresses", help="direct.env, or keyfence.env")
    parser.add_argument("--orders", type=int, default=20, help="how many orders are placed (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="another number gives other customers and goods")
    parser.add_argument("--payments", type=int, choices=[1, 2], default=1, help="the release of payments")
    given = parser.parse_args()
    urls = addresses(given.addresses)
    failed = finish({"catalog": start("catalog", urls, given)})
    failed = failed or finish({name: start(name, urls, given) for name in TOGETHER})
    if failed:
        sys.exit(f"shop: {', '.join(failed)} failed")
    print(f"shop: {given.orders} orders were placed, paid and confirmed")


if __name__ == "__main__":
    main()
