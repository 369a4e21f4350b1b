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
from keyfence.policy.loading.load import load_policy
from keyfence.policy.rules import RULES
from tests.servers import PROJECT
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
_ID = re.compile(r"""\bid="([^"]*)\"""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("furo") is None:
        pytest.skip("the packages of keyfence[docs] are not here")
    from tools.site.build import build

    folder = tmp_path_factory.mktemp("built") / "site"
    build(folder)
    return folder


def test_every_link_of_every_page_has_a_target_on_the_site(site: Path) -> None:
    texts = {page: page.read_text() for page in site.rglob("*.html")}
    ids = {page: set(_ID.findall(text)) for page, text in texts.items()}
    broken = set()
    for page, text in texts.items():
        for link in _LINK.findall(text):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = target.is_file() and (
                not parts.fragment or target not in ids or unquote(parts.fragment) in ids[target]
            )
            if not there:
                broken.add((str(page.relative_to(site)), link))
    assert broken == set()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"""<(?:img|script|iframe)\b[^>]*\bsrc="https?:|<link\b[^>]*rel="stylesheet"[^>]*href="https?:"""
    )
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []


@pytest.mark.skipif(not shutil.which("node"), reason="no node here")
def test_a_search_finds_the_right_page_first(site: Path) -> None:
    asked = ["node", str(SEARCH), str(site), *FIRST]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    found = dict(zip(FIRST, json.loads(done.stdout), strict=True))
    first = {query: results[0] if results else "" for query, results in found.items()}
    wrong = {query: found[query][:5] for query, page in FIRST.items() if not first[query].startswith(page)}
    assert wrong == {}


def test_there_is_a_page_for_each_rule_with_its_remedy() -> None:
    pages = rule_pages()
    for rule in RULES.values():
        page = pages[f"rules/{rule.name}.md"]
        for needed in (rule.meaning, rule.remedy, "## An example", "## Enforce it", "## Waive it"):
            assert needed in page, rule.name


@pytest.mark.parametrize("rule", RULES)
def test_the_waiver_on_the_page_of_a_rule_is_one(rule: str, tmp_path: Path) -> None:
    from keyfence.config.loading import load_settings
    from keyfence.config.settings import Overrides

    block = waiver_of(RULES[rule]).removeprefix("```yaml\n").removesuffix("```")
    assert yaml.safe_load(block)["waivers"][0]["rule"] == rule
    (tmp_path / "waivers.yaml").write_text(block)
    (tmp_path / "policy.yaml").write_text("policy: shop\nclaims: 'shop:'\nservices: [web]\n")
    (tmp_path / "keyfence.yaml").write_text("policy: policy.yaml\nwaivers: waivers.yaml\n")
    load_policy(tmp_path / "policy.yaml")
    load_settings(tmp_path / "keyfence.yaml", Overrides())


def test_there_is_a_page_for_each_command_with_its_help() -> None:
    pages, names = command_pages(), set(PLACES)
    assert {f"cli/{name}.md" for name in names} | {"cli/index.md"} == pages.keys()
    assert "Usage: keyfence candidate load" in pages["cli/candidate.md"]
    assert READ_ON.keys() <= names
