"""Every link of the page leads somewhere in every state of keyfence, and no page says anything odd."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.web.crawl import SMALL, anchors_without_a_place, crawl, links_of, view_of
from tests.web.person import Person, said
from tests.web.states import STATES

ODD = re.compile(
    r"\b(None of type|Traceback|undefined|nan|inf)\b|\{\{|\{%|<[a-z]+\.[A-Za-z.]+ object|=None\b"
)
# What a state must show, and must not, wherever it is said.
MUST = {
    "no store": ("keyfence runs without a findings store",),
    "no traffic": ("No client has used a key since keyfence began",),
    "splice": ("keyfence runs with --splice",),
    "no policy": ("The policy describes no keys yet", "keyfence draft"),
    "refused": ("was refused, so it is not in force", "no services"),
    "demo": ("Candidate policy",),
    "look, no clients": ("No client has used a key yet.", "keyfence is looking|all looked at"),
    "look": ("told by client name", "none of them is a mistake", "unknown|redis-py"),
    "2,000 entries": ("2 000 entries", "Scope area0"),
}
MUST_NOT = {
    "no traffic": ("Nothing to do",),
    "splice": (
        "Nothing to do",
        "Nothing new",
        "No client has used a key",
        "CubeProxy 1 – 0",
        "does not list",
    ),
    "look, no clients": ("What to do", "State of enforcement"),
    "look": ("What to do", "State of enforcement", "is not a service", "nobody"),
}


@pytest.mark.parametrize("state", STATES)
def test_every_link_of_every_state_leads_somewhere(state: str, tmp_path: Path) -> None:
    with STATES[state](tmp_path) as url:
        pages = crawl(Person(url), SMALL)
    assert anchors_without_a_place(pages) == []
    shown = {path: said(text) for path, text in pages.items() if "<main" in text}
    assert {path: found[0] for path, text in shown.items() if (found := ODD.search(text))} == {}
    everything = "\n".join(shown.values()).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert [one for one in MUST[state] if not re.search(one, everything)] == []
    assert [one for one in MUST_NOT.get(state, ()) if one in everything] == []
    menu = {view_of(link) for text in pages.values() for link in links_of(text) if link.startswith("/")}
    assert menu <= {view_of(path) for path in pages}
