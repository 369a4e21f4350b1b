"""Goes the way of a new user to the first finding: `keyfence look`, one client, and the page.

Usage: python3 -m tools.first_finding KEYFENCE REDIS-URL, in the checkout. KEYFENCE is an installed command.
Needs the standard library only.

Fails (exit 1) unless the page shows what the client did, or if keyfence does not end by Ctrl-C.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

PATIENCE_SECONDS = 120.0
KEY = "shop:cart:7"
COMMAND = f"SET {KEY} apples"


def say(text: str) -> None:
    print(f"  | {text}", flush=True)


def read_addresses(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The page's URL, and the port for clients, as `keyfence look` prints them."""
    assert process.stdout is not None
    page = ""
    for line in process.stdout:
        say(line.rstrip())
        if found := re.search(r"http://\S+/", line):
            page = found[0]
        if found := re.search(r"redis-cli -p (\d+)", line):
            return page, int(found[1])
    raise SystemExit(f"keyfence look ended with {process.wait()} before clients could connect")


def use(port: int) -> None:
    """Does what `redis-cli` would."""
    say(f"$ redis-cli -p {port} {COMMAND}")
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as client:
        client.sendall(f"{COMMAND}\r\n".encode())
        say(client.recv(64).decode().strip())


def wait_for_finding(page: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{page}findings", timeout=PATIENCE_SECONDS) as answer:
            if "shop:cart:" in answer.read().decode():
                return
        time.sleep(0.2)
    raise SystemExit(f"{page}findings shows nothing of {COMMAND!r}")


def main() -> None:
    keyfence, url = sys.argv[1:]
    begun = time.monotonic()
    say(f"$ keyfence look {url}")
    process = subprocess.Popen(
        [keyfence, "look", url], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        page, port = read_addresses(process)
        use(port)
        wait_for_finding(page)
        took = time.monotonic() - begun
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    for line in rest.splitlines():
        say(line)
    if process.returncode:
        raise SystemExit(f"keyfence look ended with {process.returncode}")
    print(f"the page showed the first finding {took:.0f} s after keyfence look")


if __name__ == "__main__":
    main()
