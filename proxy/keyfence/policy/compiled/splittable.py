"""The commands that may be sent in parts, one for each hash slot of their keys. No I/O.

Rule: only commands that do the same to each key for itself. What writes all keys or none is never among
them.
"""

from __future__ import annotations

from typing import Final

LISTED: Final = ("MGET",)  # the reply is a list in the order of the keys
COUNTED: Final = ("DEL", "EXISTS", "TOUCH", "UNLINK")  # it is a number of keys
# In parts, other clients would see some of the keys written and others not.
_ALL_OR_NONE: Final = ("MSET", "MSETEX", "MSETNX")


def splittable(name: str) -> str:
    """The name of such a command, in upper case. Raises ValueError if it is none."""
    folded = name.upper()
    if folded in (*LISTED, *COUNTED):
        return folded
    if folded in _ALL_OR_NONE:
        raise ValueError(
            f"{folded} sets all keys or none, and in parts it would not be atomic; remove it, and give keys "
            "that are set together one hash tag"
        )
    raise ValueError(f"{name!r} cannot be sent in parts; write some of {', '.join((*LISTED, *COUNTED))}")
