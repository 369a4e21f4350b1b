"""Faults and test results as programs read them: JSON, JUnit XML, GitHub's workflow commands.

Rule: every format tells the same; what a file holds is escaped as the format asks, so that no text of a
policy can pass for a command or a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from keyfence.policy.analysis.coverage import Coverage
from keyfence.policy.analysis.diff_text import Change
from keyfence.policy.analysis.testing import FileResult
from keyfence.policy.diagnostics import Diagnostic

# What XML 1.0 can't hold, in any escape.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_object(one: Diagnostic) -> dict[str, Any]:
    """A fault as plain values."""
    return {
        "file": one.place.file,
        "line": one.place.line,
        "column": one.place.column,
        "end_column": one.place.column + one.width,
        "level": one.level,
        "code": one.code or None,
        "message": one.message,
        "example": one.example or None,
    }


def as_github(one: Diagnostic) -> str:
    """A fault as a workflow command, which GitHub shows at its line of a pull request."""
    place = one.place
    file = _data(place.file).replace(":", "%3A").replace(",", "%2C")
    title = f",title={one.code}" if one.code else ""
    return f"::{one.level} file={file},line={place.line},col={place.column}{title}::{_data(one.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def change_as_object(one: Change) -> dict[str, Any]:
    """A change between two policies as plain values."""
    return {
        "section": one.section,
        "sentence": one.sentence,
        "services": list(one.services),
        "before": one.before or None,
        "after": one.after or None,
        "example": one.example or None,
    }


def tests_as_object(results: Sequence[FileResult], coverage: Mapping[str, Coverage]) -> dict[str, Any]:
    """What became of test files, and what they exercised, as plain values."""
    return {
        "tests": sum(len(file.results) for file in results),
        "failed": sum(file.failed for file in results),
        "files": [
            {
                "file": file.path,
                "policy": file.policy,
                "tests": len(file.results),
                "failed": file.failed,
                "failures": [as_object(one) for result in file.results for one in result.failures],
            }
            for file in results
        ],
        "coverage": {
            path: {
                "percent": one.percent,
                "sections": {
                    section.name: {
                        "exercised": section.exercised,
                        "total": section.total,
                        "missing": section.missing,
                    }
                    for section in one.sections()
                },
            }
            for path, one in coverage.items()
        },
    }


def as_junit(results: Iterable[FileResult]) -> str:
    """Test results as the XML that CI servers read: one suite for each file, one case for each test."""
    root = ElementTree.Element("testsuites")
    for file in results:
        name = _xml(file.path)
        total, failed = str(len(file.results)), str(file.failed)
        suite = ElementTree.SubElement(root, "testsuite", name=name, tests=total, failures=failed)
        for result in file.results:
            about = _xml(f"line {result.line}: {result.case.about}")
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=about, file=name)
            for one in result.failures:
                failure = ElementTree.SubElement(case, "failure", message=_xml(one.message))
                failure.text = _xml(one.illustrated())
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False)


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text.encode("utf-8", "backslashreplace").decode())
