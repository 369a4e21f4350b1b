"""Masked keys: what logs and reports show with `mask_keys`.

Rule: no part of a key that tells one key from another is shown.
"""

from __future__ import annotations

import hashlib
import re

from keyfence.policy.verdict import Violation, script_in
from keyfence.shapes.shapes import looks_like_word


def mask(key: bytes) -> str:
    """The hash that is shown instead of a key. Equal keys have equal masks, so a known key can be searched
    for; a short or guessable key can be found by trying."""
    return "sha256:" + hashlib.sha256(key).hexdigest()[:12]


def masked_hint(violation: Violation) -> str:
    """The hint without the pieces of the key that tell one key from another."""
    hint = violation.hint
    if not hint or not violation.shown or script_in(violation.rule, violation.shape):
        return hint
    hint = hint.replace(violation.shown, "…")
    pieces = [piece for piece in re.split(r"[^\w.@-]+", violation.shown) if piece]
    for index, piece in enumerate(pieces):
        if index == len(pieces) - 1 or not looks_like_word(piece):
            hint = re.sub(rf"(?<![\w.@-]){re.escape(piece)}(?![\w.@-])", "…", hint)
    return hint
