"""Follows every link of a page, as a person could."""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import Mapping

from keyfence.web.views import VIEWS
from tests.web.person import Person, said

SMALL = 4  # pages of one view, where there may be thousands


def crawl(person: Person, of_a_view: int = 0) -> dict[str, str]:
    """The page at each address, from the overview on; of each view `of_a_view` pages, 0 for all. No answer is
    an error."""
    pages: dict[str, str] = {}
    left: dict[str, int] = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        view = view_of(path)
        if path in pages or (of_a_view and left.setdefault(view, of_a_view) == 0):
            continue
        left[view] = left.get(view, 0) - 1
        status, where, text = person.ask("GET", path)
        assert status < 400, (path, status, said(text) if "<main" in text else text)
        pages[path] = text
        waiting += [urllib.parse.urldefrag(where).url] if 300 <= status < 400 else []
        for link in links_of(text):
            joined = urllib.parse.urljoin(path, link)
            if not urllib.parse.urlsplit(joined).netloc:
                waiting.append(urllib.parse.urldefrag(joined).url)
    return pages


def view_of(address: str) -> str:
    """The pattern of the view at an address."""
    path = urllib.parse.urlsplit(address).path
    for view in VIEWS:
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", view.path), path):
            return view.path
    return path


def links_of(text: str) -> list[str]:
    if "<main" not in text:
        return []
    return [html.unescape(one) for one in re.findall(r'<a [^>]*href="([^"]*)"', text)]


def anchors_without_a_place(pages: Mapping[str, str]) -> list[str]:
    """The links whose part of a page does not exist."""
    missing = []
    for path, text in pages.items():
        for link in links_of(text):
            target, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(path, link))
            if fragment and target in pages and f'id="{html.escape(fragment)}"' not in pages[target]:
                missing.append(link)
    return missing
