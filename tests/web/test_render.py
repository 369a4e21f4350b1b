from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from keyfence.web.render import ASSETS, FOLDER, SECURITY_POLICY, asset, asset_path, prepare, render

TEMPLATES = sorted((FOLDER / "templates").rglob("*.html"))


def name_of(path: Path) -> str:
    return str(path.relative_to(FOLDER / "templates"))


class Attributes(HTMLParser):
    """Collects what the Content-Security-Policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.forbidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name.startswith("on") or name == "style" or (value or "").startswith("javascript:"):
                self.forbidden.append(f"<{tag} {name}>")
        if tag == "style" or (tag == "script" and "src" not in dict(attrs)):
            self.forbidden.append(f"<{tag}>")


@pytest.mark.parametrize("template", TEMPLATES, ids=name_of)
def test_a_template_has_no_script_and_no_style_of_its_own(template: Path) -> None:
    parser = Attributes()
    parser.feed(re.sub(r"{%.*?%}", "", template.read_text()))
    assert parser.forbidden == []


@pytest.mark.parametrize("template", TEMPLATES, ids=name_of)
def test_a_template_escapes_everything(template: Path) -> None:
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", template.read_text())


def test_no_file_of_the_page_names_another_origin() -> None:
    for path in (*TEMPLATES, *ASSETS.iterdir()):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:https?:)?//[a-z]", text.replace("// ", "")), path


def test_the_policy_admits_this_origin_only_and_no_frames() -> None:
    directives = dict(one.strip().split(" ", 1) for one in SECURITY_POLICY.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["frame-ancestors"] == directives["base-uri"] == "'none'"
    assert set(directives.values()) == {"'none'", "'self'"}


def test_values_are_escaped() -> None:
    values = {"title": "<script>", "lines": ['"><img src=x>'], "code": "<b>", "back": '/"><x>'}
    shell = {"path": "/", "views": (), "live": "", "who": "", "may_sign_in": False, "notices": [], "now": 1.0}
    text = render("outcome.html", {**values, "page": {**shell, "policy": None}, "now": 1.0})
    assert "<script>" not in text.replace("<script src", "")
    assert "<img" not in text
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert 'href="/&#34;&gt;&lt;x&gt;"' in text


def test_all_templates_are_compiled_at_once_and_only_once() -> None:
    began = time.process_time()
    prepare()
    took = time.process_time() - began
    began = time.process_time()
    for _ in range(100):
        prepare()
    assert time.process_time() - began <= max(took, 0.01)


def test_a_missing_value_is_an_error_and_not_an_empty_place() -> None:
    with pytest.raises(UndefinedError):
        render("live/headline.html", {})


def test_assets_are_files_of_one_folder() -> None:
    css = asset("page.css")
    assert css is not None
    assert css == (ASSETS / "page.css").read_bytes()
    for name in ("../site.py", "/etc/passwd", "", ".", "no-such.css"):
        assert asset(name) is None


def test_the_address_of_an_asset_has_a_hash_of_its_content() -> None:
    assert re.fullmatch(r"/assets/page\.css\?[0-9a-f]{12}", asset_path("page.css"))
    assert asset_path("page.css") != asset_path("page.js").replace(".js", ".css")
