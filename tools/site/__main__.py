"""`python -m tools.site [FOLDER]`: builds the site into build/site, or FOLDER. A warning is an error."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.site.build import PROJECT, build

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tools.site", description="Builds the site. A warning is an error."
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", default=PROJECT / "build" / "site", help="default: build/site"
    )
    folder: Path = parser.parse_args().folder
    build(folder)
    print(f"the site is in {folder}: open {folder / 'index.html'}")
