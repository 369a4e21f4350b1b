"""Prints the seconds for each search of `make adversary`: `python -m tools.share_of_time MINUTES PATH…`."""

from __future__ import annotations

import subprocess
import sys


def searches(*paths: str) -> int:
    """Returns how many of the tests that pytest collects from the paths are searches."""
    listing = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--setup-plan", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    return listing.stdout.count("SETUP    F search")


def main() -> None:
    minutes, paths = float(sys.argv[1]), sys.argv[2:]
    print(max(1.0, round(2 * minutes * 60 / max(1, searches(*paths)), 1)))  # two run side by side


if __name__ == "__main__":
    main()
