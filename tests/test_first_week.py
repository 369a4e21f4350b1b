from __future__ import annotations

import re
from pathlib import Path

from tests.first_week import DOCUMENT, walked


def columns(text: str) -> str:
    """A text without the width of its columns, which depends on the time of day."""
    return re.sub(r" {2,}", "  ", text)


def test_the_first_week_goes_as_the_document_says(tmp_path: Path) -> None:
    written = DOCUMENT.read_text()
    assert columns(walked(written, tmp_path)) == columns(written), "python -m tests.first_week"
