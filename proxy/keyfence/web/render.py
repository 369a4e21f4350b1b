"""Turns plain values into HTML.

Rule: everything is escaped, because keys and names are written by strangers. Templates hold no script and no
style of their own, so that the Content-Security-Policy can forbid both.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyfence import __version__

from . import charts, words

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
ASSETS = FOLDER / "assets"
# Nothing of another origin is loaded, framed or sent to.
SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@functools.cache
def _environment() -> Environment:
    # Imported for the first page, so that the start of keyfence does not wait for it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= words.FILTERS
    environment.globals |= {
        **words.GLOBALS,
        "bars": charts.bars,
        "sparkline": charts.sparkline,
        "version": __version__,
        "asset": asset_path,
    }
    return environment


@functools.cache
def prepare() -> None:
    """Compile every template. That takes some tenths of a second, once in a process: call it in a thread, so
    that clients do not wait for it."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def render(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template. With thousands of rows it takes tenths of a second: call it in a thread then.
    Raises jinja2.TemplateError if it needs a value that is missing."""
    return _environment().get_template(template).render(values)


def asset(name: str) -> bytes | None:
    """The content of a file under assets/; None if there is none of this name."""
    return _assets().get(name)


@functools.cache
def _assets() -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in ASSETS.iterdir() if one.is_file()}


@functools.cache
def asset_path(name: str) -> str:
    """The path of an asset, which changes with its content, so that browsers may keep it."""
    content = asset(name)
    assert content is not None, name
    return f"/assets/{name}?{hashlib.sha256(content).hexdigest()[:12]}"
