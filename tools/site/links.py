"""Pages of the repository as pages of the site: where each one stands, and what its links become.

Rule: a link to a page leads to that page of the site, and one to another file to a copy of it. A link to a
folder becomes its text, because a folder has no page.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# A code block, which is left alone, or a link.
_PARTS = re.compile(
    r"^```.*?^```|(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<to>[^)\s]+)\)", re.MULTILINE | re.DOTALL
)
_FIRST_CELL = re.compile(r"^\| (`[\w.]+`) \|", re.MULTILINE)
# Where the pages that are made for the site would be in the repository.
_MADE = (PROJECT / "docs" / "rules", PROJECT / "docs" / "cli")
# What people search for, by the page and heading that should come first. A plural finds the singular too.
TERMS = {
    ("policy.md", "Modes and waivers"): ("waivers", "enforce", "observe"),
    ("policy.md", "Scripts"): ("scripts",),
    ("policy.md", "Tenants"): ("tenants",),
    ("operations.md", "A candidate policy"): ("candidates",),
    ("operations.md", "Asking a running keyfence"): ("break-glass",),
    ("operations.md", "Redis Cluster"): ("clusters",),
    ("operations.md", "Failovers with Sentinel"): ("sentinels", "failovers"),
}
# Sections of docs/tools.md that are a command's page on the site.
SECTIONS = ("policies", "check", "test", "explain", "diff", "schema")


class Sources:
    """The folder that Sphinx reads, while it is filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._todo: list[tuple[Path, str]] = []
        self._known: set[Path] = set()

    def take(self, page: Path, more: str = "") -> None:
        """Takes a page of the repository, with more text at its end."""
        if page not in self._known:
            self._known.add(page)
            self._todo.append((page, more))

    def write(self, path: str, text: str) -> None:
        """Writes a page that is made for the site. Its links are those of a page in docs/."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self._linked(text, PROJECT / "docs" / path, path))

    def finish(self, rules: Mapping[str, str]) -> None:
        """Writes all pages that were taken, and those that they lead to. `rules` are the names to link."""
        while self._todo:
            page, more = self._todo.pop()
            text = page.read_text()
            if page == PROJECT / "docs" / "tools.md":
                text = _without_sections(text)
            elif page == PROJECT / "docs" / "policy.md":
                text = _FIRST_CELL.sub(lambda cell: f"| {rules.get(cell[1], cell[1])} |", text)
            place = place_of(page)
            text = _with_terms(self._linked(text, page, place), place)
            if "/" in place:  # linked, and in no list
                text = f"---\norphan: true\nnosearch: true\n---\n\n{text}"
            (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / place).write_text(text + more)

    def _linked(self, text: str, page: Path, place: str) -> str:
        return _PARTS.sub(lambda part: self._link(part, page, place), text)

    def _link(self, part: re.Match[str], page: Path, place: str) -> str:
        to = part["to"]
        if to is None or re.match(r"[a-z]+:|#", to):
            return part[0]
        path, _, anchor = to.partition("#")
        target = (page.parent / path).resolve()
        if target.parent in _MADE:
            return part[0]
        if target == PROJECT / "docs" / "tools.md" and anchor in SECTIONS:
            path, anchor = f"cli/{anchor}.md", ""
        elif target.is_dir():
            return part["text"]
        elif target.suffix == ".md":
            self.take(target)
            path = place_of(target)
        else:
            path = f"files/{target.relative_to(PROJECT)}"
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, self.folder / path)
        relative = posixpath.relpath(path, posixpath.dirname(place) or ".")
        return f"{part['image']}[{part['text']}]({relative}{'#' * bool(anchor)}{anchor})"


def place_of(page: Path) -> str:
    """Where a page of the repository stands on the site."""
    path = page.relative_to(PROJECT)
    if path.name == "README.md":
        return "index.md" if path.parent == Path() else f"files/{path.parent}.md"
    if path.parent == Path("docs"):
        return path.name
    return path.name.lower() if path.parent == Path() else f"files/{path}"


def section_of(page: str, heading: str) -> str:
    """The section of a page of docs/ below a heading, without the heading; empty if there is none."""
    text = (PROJECT / "docs" / page).read_text()
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def _with_terms(text: str, place: str) -> str:
    """The page with the terms that lead to its headings."""
    for (page, heading), terms in TERMS.items():
        if page == place:
            found = re.search(rf"^#+ {re.escape(heading)}\n", text, re.MULTILINE)
            assert found, f"tools/site/links.py: docs/{page} has no heading {heading!r}"
            entries = ", ".join(f"! {term}" for term in terms)
            text = f"{text[: found.end()]}\n```{{index}} {entries}\n```\n{text[found.end() :]}"
    return text


def _without_sections(text: str) -> str:
    for name in SECTIONS:
        text = re.sub(rf"^## {name}\n.*?(?=^## |\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    return text
