"""Faults and test results in formats for programs: JSON, JUnit XML, GitHub workflow commands.

Rule: every format carries the same facts. Text from a file is escaped by the format's rules, so that no text
in a policy can act as a workflow command or an XML tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from keyfence.authoring.coverage import Coverage
from keyfence.authoring.diff_text import Change
from keyfence.authoring.testing import FileResult
from keyfence.policy.diagnostics import Diagnostic

# Characters that XML 1.0 cannot hold, even escaped.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_object(one: Diagnostic) -> dict[str, Any]:
    """Returns a fault as plain values for JSON."""
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
    """Returns a fault as a workflow command. GitHub shows it at the fault's line in a pull request."""
    place = one.place
    file = _data(place.file).replace(":", "%3A").replace(",", "%2C")
    title = f",title={one.code}" if one.code else ""
    return f"::{one.level} file={file},line={place.line},col={place.column}{title}::{_data(one.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def change_as_object(one: Change) -> dict[str, Any]:
    """Returns a change between two policies as plain values for JSON."""
    return {
        "section": one.section,
        "sentence": one.sentence,
        "services": list(one.services),
        "before": one.before or None,
        "after": one.after or None,
        "example": one.example or None,
    }


def tests_as_object(results: Sequence[FileResult], coverage: Mapping[str, Coverage]) -> dict[str, Any]:
    """Returns the results and the coverage of test files as plain values for JSON."""
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
    """Returns test results as JUnit XML: a suite for each file, a case for each test."""
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
