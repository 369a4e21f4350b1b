"""The documentation as a site: it builds without a warning, its links hold, its search finds the right page.

Sphinx fails for a link to a page or a heading that is missing; here the built pages are looked at.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from keyfence.cli.main import PLACES
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.policy.rules import RULES
from tests.servers import PROJECT
from tools.site.build import build
from tools.site.commands import READ_ON, command_pages
from tools.site.rules import rule_pages, waiver_of

SEARCH = PROJECT / "tests" / "node" / "search.js"
# What people search for, and the page that should come first.
FIRST = {
    "READONLY": "runbooks#redisreadonly",
    "waiver": "policy",
    "hash tag": "rules/key.hash_tag",
    "scope.write": "rules/scope.write",
    "keyfence look": "cli/look",
    "break-glass": "operations",
    "tenant": "policy",
    "sentinel": "operations",
}
_LINK = re.compile(r"""<(?:a|img|link|script)\b[^>]*?\b(?:href|src)="([^"]*)\"""")
# A page of the site loads nothing from elsewhere.
_LOADS = re.compile(
    r"""<(?:img|script|iframe)\b[^>]*\bsrc="https?:|<link\b[^>]*"stylesheet"[^>]*href="https?:"""
)
_ID = re.compile(r"""\bid="([^"]*)\"""")


def broken_links(site: Path) -> set[tuple[str, str]]:
    """Pages and the links on them that lead to no file, or to no place in it."""
    texts = {page: page.read_text() for page in site.rglob("*.html")}
    ids = {page: set(_ID.findall(text)) for page, text in texts.items()}
    broken = set()
    for page, text in texts.items():
        for link in _LINK.findall(text):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            place = unquote(parts.fragment)
            if not target.is_file() or (place and target in ids and place not in ids[target]):
                broken.add((str(page.relative_to(site)), link))
    return broken


def wrong_first(site: Path) -> dict[str, list[str]]:
    """Searches whose first result is not the right page, with their results."""
    asked = ["node", str(SEARCH), str(site), *FIRST]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    found = dict(zip(FIRST, json.loads(done.stdout), strict=True))
    return {
        query: found[query][:5] for query in FIRST if not "".join(found[query][:1]).startswith(FIRST[query])
    }


# One test, because the site is built for it: half a minute of a processor.
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    importlib.util.find_spec("furo") is None, reason="the packages of keyfence[docs] are not here"
)
def test_the_site_builds_its_links_hold_and_a_search_finds_the_right_page_first(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build(site)
    assert broken_links(site) == set()
    assert [page.name for page in site.rglob("*.html") if _LOADS.search(page.read_text())] == []
    if shutil.which("node"):
        assert wrong_first(site) == {}


def test_there_is_a_page_for_each_rule_with_its_remedy() -> None:
    pages = rule_pages()
    for rule in RULES.values():
        page = pages[f"rules/{rule.name}.md"]
        for needed in (rule.meaning, rule.remedy, "## An example", "## Enforce it", "## Waive it"):
            assert needed in page, rule.name


@pytest.mark.parametrize("rule", RULES)
def test_the_waiver_on_the_page_of_a_rule_is_one(rule: str, tmp_path: Path) -> None:
    block = waiver_of(RULES[rule]).removeprefix("```yaml\n").removesuffix("```")
    assert yaml.safe_load(block)["waivers"][0]["rule"] == rule
    (tmp_path / "waivers.yaml").write_text(block)
    (tmp_path / "policy.yaml").write_text("policy: shop\nclaims: 'shop:'\nservices: [web]\n")
    (tmp_path / "keyfence.yaml").write_text("policy: policy.yaml\nwaivers: waivers.yaml\n")
    load_settings(str(tmp_path / "keyfence.yaml"), Overrides())


def test_there_is_a_page_for_each_command_with_its_help() -> None:
    pages, names = command_pages(), set(PLACES)
    assert {f"cli/{name}.md" for name in names} | {"cli/index.md"} == pages.keys()
    assert "Usage: keyfence candidate load" in pages["cli/candidate.md"]
    assert READ_ON.keys() <= names
