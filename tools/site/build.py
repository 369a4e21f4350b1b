"""The site's sources, in a folder of their own, and Sphinx over them.

Rule: the folder is made anew each time; what stands in it comes from the repository.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from keyfence.policy.rules import RULES
from tools.site.commands import command_pages
from tools.site.links import PROJECT, Sources
from tools.site.rules import rule_pages

# The pages of docs/ in the order in which the site lists them. A page that no list names is a task.
BEGIN = ("first-hour", "first-week", "questions")
DECIDE = ("cost", "topology", "environments", "managed", "acl", "upgrades")
TASKS = (
    "draft",
    "page",
    "ci",
    "publishing",
    "fleet",
    "news",
    "history",
    "audit",
    "export",
    "applications",
    "runbooks",
)
REFERENCE = (
    "policy",
    "configuration",
    "operations",
    "tools",
    "metrics",
    "commands",
    "differences",
    "conformance",
    "conventions",
)
PROJECT_PAGES = ("performance", "architecture", "tour")

CONFIGURATION = """\
project = "keyfence"
extensions = ["myst_parser"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "keyfence"
html_copy_source = False
html_show_sphinx = False
html_use_index = False
suppress_warnings = ["myst.header"]  # pages of the repository may skip a level of headings
"""


def build(folder: Path) -> None:
    """Builds the site into a folder. Raises SystemExit with what Sphinx says if there is a warning."""
    missing = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"the site needs {', '.join(missing)}: make site, or pip install keyfence[docs]")
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="keyfence-site-") as scratch:
        sources = Path(scratch) / "sources"
        write_sources(sources)
        command = [sys.executable, "-m", "sphinx", "--builder", "html", "--quiet", "--fail-on-warning"]
        command += [
            "--keep-going",
            "--jobs",
            "2",
            "--doctree-dir",
            f"{scratch}/doctrees",
            str(sources),
            str(folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}the site has faults")


def write_sources(folder: Path) -> None:
    """Writes what Sphinx reads into a new folder."""
    folder.mkdir(parents=True)
    (folder / "conf.py").write_text(CONFIGURATION)
    sources = Sources(folder)
    documents = {path.stem for path in (PROJECT / "docs").glob("*.md")}
    placed = {*BEGIN, *DECIDE, *TASKS, *REFERENCE, *PROJECT_PAGES}
    for name in sorted(documents):
        sources.take(PROJECT / "docs" / f"{name}.md")
    for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"):
        sources.take(PROJECT / f"{name}.md")
    generated = {**rule_pages(), **command_pages()}
    for path, text in generated.items():
        sources.write(path, text)
    lists = {
        "Begin": BEGIN,
        "Decide": DECIDE,
        "Tasks": (*TASKS, *sorted(documents - placed)),
        "Reference": ("policy", "rules/index", "cli/index", *REFERENCE[1:]),
        "Project": ("changelog", "security", "contributing", *PROJECT_PAGES),
    }
    sources.take(PROJECT / "README.md", "".join(map(_listed, lists, lists.values())))
    sources.finish({f"`{rule}`": f"[`{rule}`](rules/{rule}.md)" for rule in RULES})


def _listed(caption: str, pages: tuple[str, ...]) -> str:
    lines = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"
