"""What the page shows in `keyfence look`, and what it does not show elsewhere."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from keyfence.cli.look.picture import Picture
from keyfence.cli.look.used import NO_KEY
from keyfence.web.asked_once import Questions
from keyfence.web.render import render
from keyfence.web.views import LOOK, MENU_OF_LOOK, VIEWS, VIEWS_OF_LOOK
from tests.cli.look.test_picture import picture
from tests.cli.look.test_shown import kind, service, there
from tests.web.person import said
from tests.web.stage import NASTY, Stage, violation
from tests.web.test_site import Browser, play
from tests.web.test_views import SHELL


class Looking(Stage):
    """A keyfence that `keyfence look` has started."""

    looks = True
    seen: Picture | None = None

    async def look(self) -> Mapping[str, Any]:
        return self.seen.as_json() if self.seen is not None else {}


@pytest.fixture
def looking(tmp_path: Path) -> Iterator[Looking]:
    made = Looking(tmp_path)
    made.seen = picture()
    yield made
    made.close()


def shown(looking: Looking) -> str:
    """The view as HTML."""
    view = next(one for one in VIEWS if one.path == LOOK)
    values = asyncio.run(view.load(Questions(looking), {}))
    return render(view.template, {**values, "page": SHELL, "now": time.time()})


def test_it_has_the_keys_who_uses_them_and_how_to_keep_it(looking: Looking) -> None:
    text = said(shown(looking))
    assert "What is on redis://h:1 " in text
    assert "connect to 127.0.0.1:7 in its place: redis-cli -p 7" in text
    assert "1,000 keys, about 97.7 kB; 50 of them were looked at" in text
    assert "a:<int> ~600 60% ~58.6 kB string 50% in 1h b ~400 40%" in text
    assert "Database 3 was not looked at: 5 keys. Name it with /3 in the URL." in text
    assert "unknown clients without user, name and library" in text
    assert "web told by client name; redis-py 5.2.0" in text
    assert text.endswith("keyfence draft /f/commands.log redis://h:1 -o policy.yaml")


@pytest.mark.parametrize(
    ("changed", "texts"),
    [
        ({"there": None}, ["keyfence is looking at the keys."]),
        ({"there": None, "why_not": "NOPERM scan"}, ["The keys cannot be looked at: NOPERM scan"]),
        ({"there": there(total=0, looked_at=0)}, ["Database 0: no keys."]),
        (
            {"services": (), "is_kept": False},
            ["No client has used a key yet.", "Who uses them is known once"],
        ),
        ({"services": (), "is_kept": False, "draft": ""}, ["There is nothing to keep yet"]),
    ],
)
def test_what_is_not_known_is_said(looking: Looking, changed: dict[str, Any], texts: list[str]) -> None:
    for name, value in changed.items():
        setattr(looking.seen, name, value)
    text = said(shown(looking))
    assert [one for one in texts if one not in text] == []


def test_before_anything_is_seen_it_says_so(looking: Looking) -> None:
    looking.seen = None
    assert "Nothing is known yet." in said(shown(looking))


def test_what_clients_send_is_shown_inert(looking: Looking) -> None:
    assert looking.seen is not None
    looking.seen.there = there(kind(NASTY, 100))
    looking.seen.services = [service("web", NASTY, NO_KEY)]
    looking.seen.services[0].libraries = {NASTY: None}
    looking.seen.draft = NASTY
    text = shown(looking)
    assert "<b onload" not in text
    assert re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text) is None
    assert "(no key)" in text


def test_in_look_the_menu_has_only_what_is_known_there(looking: Looking) -> None:
    looking.see(violation())

    async def scenario(browser: Browser) -> None:
        for view in VIEWS:
            if view.path in VIEWS_OF_LOOK or "{id}" in view.path:
                continue
            answer = await browser.get(view.path.replace("{service}", "web"))
            assert (answer.status, answer.headers["Location"]) == (303, LOOK), view.path
        page = await browser.get(LOOK)
        assert (page.status, page.is_page) == (200, True)
        menu = re.findall(r'<li><a href="([^"]+)"[^>]*>([^<]+)</a></li>', page.text)
        assert menu == list(MENU_OF_LOOK)
        listed = await browser.get("/findings")
        assert "none of them is a mistake" in listed.said
        (one,) = set(re.findall(r"/findings/f-\w+", listed.text))
        finding = await browser.get(one)
        assert "none of them is a mistake" in finding.said
        for heading in ("What to do", "If it cannot be mended soon", "If enforced"):
            assert heading not in finding.said
        assert "/explain" not in finding.text
        assert (await browser.get("/", headers={})).text.startswith("keyfence\n")

    play(looking, scenario)


def test_elsewhere_there_is_no_such_view(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    async def scenario(browser: Browser) -> None:
        assert (await browser.get(LOOK)).status == 404
        assert f'href="{LOOK}"' not in (await browser.get("/")).text

    play(stage, scenario)
    stage.close()
