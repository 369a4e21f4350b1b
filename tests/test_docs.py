"""Every link between the documents has a target; the files and the version that they name are right."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from keyfence import __version__
from tests.servers import PROJECT

DOCUMENTS = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")])
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(document: Path) -> str:
    """Returns the document without its code blocks."""
    return _FENCED.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """Returns the anchors that GitHub makes for the document's headings."""
    headings = (heading.lower() for heading in _HEADING.findall(text_of(document)))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def broken(document: Path) -> Iterator[str]:
    for link in _LINK.findall(text_of(document)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_link_has_a_target(document: Path) -> None:
    assert list(broken(document)) == []


# A file or folder of the project, as prose names it: `tests/cli/test_main.py`, `fuzz/`.
_NAMED = re.compile(r"`((?:\.ci|benchmarks|docs|fuzz|policies|proxy|tests|tools)/[\w./-]*)`")
NAMING = [
    PROJECT / name
    for name in ("CONTRIBUTING.md", "README.md", "SECURITY.md", "docs/architecture.md", "docs/tour.md")
]


@pytest.mark.parametrize("document", NAMING, ids=lambda document: document.name)
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    named = set(_NAMED.findall(document.read_text()))
    placeholders = {name for name in named if "NAME" in name}
    made = {"fuzz/found", "build/fuzz", "benchmarks/results/", "tests/node/node_modules"}
    assert {name for name in named - placeholders - made if not (PROJECT / name).exists()} == set()


# Pages whose blocks of YAML are parts of a configuration or of a policy.
PARTLY = ("environments", "managed", "news", "topology", "upgrades")
_YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def faults_of(part: dict[str, Any], schema: str) -> list[str]:
    """What a file with this part, and with all else that it needs, would have wrong."""
    wanted = json.loads((PROJECT / "docs" / "schemas" / f"{schema}.json").read_text()) | {"required": []}
    return [fault.message for fault in jsonschema.Draft202012Validator(wanted).iter_errors(part)]


@pytest.mark.parametrize("page", PARTLY)
def test_every_example_of_a_page_is_a_part_of_a_configuration_or_a_policy(page: str) -> None:
    blocks = map(yaml.safe_load, _YAML.findall((PROJECT / "docs" / f"{page}.md").read_text()))
    faults = {str(block): (faults_of(block, "config"), faults_of(block, "policy")) for block in blocks}
    assert {block: both for block, both in faults.items() if all(both)} == {}


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_a_page_that_is_read_first_stays_short(page: str) -> None:
    assert len((PROJECT / page).read_text().splitlines()) <= 200


def test_the_package_and_the_project_have_the_same_version() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
