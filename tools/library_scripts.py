"""Reads the scripts that npm packages of BullMQ send, for `scripts: {…: {library: bullmq}}` of policies.

    python -m tools.library_scripts bullmq tests/node/node_modules/bullmq FOLDER…

Each FOLDER is an unpacked package (`npm pack bullmq@VERSION`). Node loads its own files of scripts, so the
texts are those that the package sends. The file libraries.json gets their SHA-1s, the number of keys that a
call declares, and whether the script may write; it gets no text. Versions that are in the file stay there.

Rule: a script that may write is never listed as one that only reads. Where the text leaves a doubt about a
command, the script counts as writing.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from keyfence.commands.table import COMMANDS
from keyfence.policy.source.libraries import FILE

# Prints name, number of keys and text of each script of a package, as it exports them.
_EXPORTED = """
const fs = require("fs"), path = require("path");
const folder = path.resolve(process.argv[1], "dist/cjs/scripts");
const found = [];
for (const file of fs.readdirSync(folder).sort()) {
  if (!file.endsWith(".js") || file === "index.js") continue;
  for (const one of Object.values(require(path.join(folder, file)))) {
    if (one && one.content) found.push([one.name, one.keys, one.content]);
  }
}
console.log(JSON.stringify(found));
"""
_ALIAS = re.compile(r"local\s+rcall\s*=\s*redis\.call\b")
# Other ways to a command, or to code that the text does not show. Comments are read as code.
_DOUBT = re.compile(
    r"\bredis\b(?!\.(?:call|pcall|log|LOG_[A-Z]+|error_reply|status_reply|sha1hex)\b)|\bload|_G\b|env\b"
)
_CALL = re.compile(
    r"\b(?:redis\.p?call|rcall)\b(?P<call>\s*\(\s*(?P<quote>[\"'])(?P<name>[A-Za-z]+)(?P=quote))?"
)


def scripts_of(package: Path) -> list[tuple[str, int, str]]:
    """Returns name, number of keys and text of each script that a package exports."""
    ran = subprocess.run(["node", "-e", _EXPORTED, str(package)], check=True, capture_output=True, text=True)
    return [(str(name), int(keys), str(text)) for name, keys, text in json.loads(ran.stdout)]


def commands_in(text: str) -> set[str]:
    """Returns the commands that a script calls; "" is among them for one that the text does not name."""
    code = _ALIAS.sub("", text)
    doubts = {""} if _DOUBT.search(code) else set()
    return doubts | {(match["name"] or "").upper() for match in _CALL.finditer(code)}


def only_reads(text: str) -> bool:
    """Whether every command that a script calls is one that only reads keys."""
    rows = [COMMANDS.get(name.encode()) for name in commands_in(text)]
    return all(row is not None and "read" in row.command.categories for row in rows)


def fact_of(text: str, keys: int) -> dict[str, Any]:
    """Returns what the file of libraries states about a script, without its versions."""
    return {"keys": keys, "access": "read" if only_reads(text) else "write"}


def add(library: dict[str, Any], version: str, scripts: list[tuple[str, int, str]]) -> None:
    """Adds the scripts of a version to the facts about a library."""
    for name, keys, text in scripts:
        sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        versions = set(library["scripts"].get(name, {}).get(sha1, {}).get("versions", ()))
        fact = fact_of(text, keys) | {"versions": sorted({*versions, version}, key=order)}
        library["scripts"].setdefault(name, {})[sha1] = fact
    library["versions"] = sorted({*library["versions"], version}, key=order)


def order(version: str) -> list[int]:
    """Returns the numbers of a version, as a sort key."""
    return list(map(int, version.split(".")))


def written(known: dict[str, Any]) -> str:
    """Returns the file's text, with one line for each script."""
    lines = ["{"]
    for library, facts in sorted(known.items()):
        lines += [
            f" {json.dumps(library)}: {{",
            f'  "versions": {json.dumps(facts["versions"])},',
            '  "scripts": {',
        ]
        named = [
            f"   {json.dumps(name)}: {{\n"
            + ",\n".join(
                f"    {json.dumps(sha1)}: {json.dumps(fact)}" for sha1, fact in sorted(by_sha1.items())
            )
            + "}"
            for name, by_sha1 in sorted(facts["scripts"].items())
        ]
        lines += [",\n".join(named), "  }", " },"]
    return "\n".join([*lines[:-1], " }", "}"]) + "\n"


def main(name: str, *packages: str) -> None:
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    library = known.setdefault(name, {"versions": [], "scripts": {}})
    for package in map(Path, packages):
        version = json.loads((package / "package.json").read_text())["version"]
        add(library, version, scripts_of(package))
    FILE.write_text(written(known))


if __name__ == "__main__":
    main(*sys.argv[1:])
