"""Files that never change where keyfence sees them, because of how they are mounted.

Rule: it only reads the list of mounts. What is not certain is not reported.

A mount of one file stays with the file that was there when it was made. Kubernetes replaces the files of a
ConfigMap or Secret. So a container that mounts one by `subPath` keeps its content until it is restarted.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

MOUNTS = "/proc/self/mountinfo"  # proc_pid_mountinfo(5)
# The folder that a ConfigMap's or Secret's `..data` leads to, as kubelet names it by its time.
_REVISION = re.compile(r"/\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+(/|$)")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mounts(listed: str | Path = MOUNTS) -> dict[str, str]:
    """Returns the mounts of this process: the path, and what is mounted there, in its own file system."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path(listed).read_text(errors="surrogateescape").splitlines():
            fields = line.split(" ")
            if len(fields) > 4:
                found[_plain(fields[4])] = _plain(fields[3])
    return found


def _plain(text: str) -> str:
    """A field of the list, without the escapes for blanks and the like."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def unchanging(files: Iterable[str], known: dict[str, str]) -> list[str]:
    """Returns a sentence for each of these files that keyfence never sees replaced, or for its folder."""
    found = []
    for file in files:
        path = os.path.realpath(file)
        folder = os.path.dirname(path)
        if path in known and not os.path.isdir(path):
            found.append(
                f"{file} is mounted by itself (a Kubernetes subPath, or a bind mount of one file), so "
                "keyfence does not see it replaced; mount the folder that holds it"
            )
        elif _REVISION.search(known.get(folder, "")):
            found.append(
                f"{folder} is a mount of one revision of a ConfigMap (a Kubernetes subPath), so keyfence "
                "does not see its files replaced; mount the volume without subPath"
            )
    return list(dict.fromkeys(found))
