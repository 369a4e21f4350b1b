from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.findings.finding import State
from keyfence.findings.gate.formats import FORMATS, as_github, as_json, as_junit, as_markdown, as_text
from keyfence.findings.gate.judgement import Judgement, blocking, judge
from tests.findings.gate.findings import NOON, evidence, example, finding, judged, unjudged

# Keys, hints and owners that try to leave their place.
HOSTILE = [
    "::error::x",
    "  ::add-mask::e",
    "a##[stop-commands]b",
    "`code` ``two``",
    "a|b|c",
    "a\\|b\\\\|c\\",
    "<script>alert(1)</script>",
    "![](http://x.example/y.png)",
    "@team #1 www.x.example",
    "%0A::warning::x",
    "line\nnext\r\n::error::x",
    "\x1b[31mred\x00",
    "]]>&amp;",
    "\ud800",
    "*a* _b_ ~c~ [d](e)",
]


def hostile(text: str) -> Judgement:
    one = finding(entry="", shape=text, owner=text, hint=text, examples=[example(text)])
    return judged(one, finding(severity="should", command="DEL", hint=text))


def worst() -> Judgement:
    """More findings than GitHub shows, with long and wide texts."""
    long = "ключ" * 200
    some = [finding(command=f"C{n}", shape=long, hint=long, examples=[example(long)]) for n in range(900)]
    should = [finding(command=f"S{n}", severity="should", hint=long) for n in range(900)]
    known = blocking(finding(command=f"K{n}", shape=long) for n in range(900))
    return judge(evidence(*some, *should), baseline=known, baseline_name="b.yaml")


# -- text


def test_the_text_is_a_table_of_80_columns() -> None:
    assert as_text(judged(finding(), finding(rule="ttl.required", hint="SET it with EX 60", owner=""))) == (
        """\
keyfence gate: 2 new findings; 1,204 commands evaluated

finding         rule          service  command  times
f-9842600af79e  scope.write   shop     SET          6
  keys     order
  example  order:7  (d-82b2029b)
  hint     its writers: billing
  owner    #billing
  client   10.0.0.7
f-5e33eee7acc9  ttl.required  shop     SET          6
  keys     order
  example  order:7  (d-82b2029b)
  hint     SET it with EX 60
  client   10.0.0.7
"""
    )


def test_the_text_names_what_does_not_fail() -> None:
    answer = judge(
        evidence(
            finding(State.OPEN), finding(State.WAIVED, command="DEL"), finding(severity="should", command="X")
        ),
        baseline=blocking([finding(), finding(command="GETSET")]),
        baseline_name="known.yaml",
    )
    assert as_text(answer) == (
        """\
keyfence gate: no new findings; 1,204 commands evaluated

should (reported, never refused):
finding         rule         service  command  times
f-d0d84de1d6d7  scope.write  shop     X            6
  keys     order
  example  order:7  (d-82b2029b)
  hint     its writers: billing
  owner    #billing
  client   10.0.0.7

1 known finding was not seen; if fixed, remove from known.yaml:
  f-750d3863a326  scope.write shop GETSET order

not counted: 1 known, 1 should only, 1 waived
"""
    )


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (judged(), "no new findings; 1,204 commands evaluated"),
        (judged(commands=1), "no new findings; 1 command evaluated"),
        (judged(commands=0), "no traffic was judged: this run proves nothing"),
        (judged(commands=None, is_silent=False), "no new findings in the decision log"),
        (
            judge(evidence(finding()), since=NOON - 60),
            "1 new finding since 2023-11-14 11:59:00Z; 1,204 commands evaluated since 2023-11-14 11:00:00Z",
        ),
        (
            judge(evidence(commands=0), since=NOON),
            "no traffic was judged since 2023-11-14 12:00:00Z: this run proves nothing",
        ),
    ],
)
def test_the_first_line_is_the_answer(answer: Judgement, line: str) -> None:
    assert as_text(answer).splitlines()[0] == f"keyfence gate: {line}"


# -- hostile text


def runner_commands(text: str) -> list[str]:
    """The lines that GitHub's runner takes as commands."""
    return [line for line in re.split(r"[\r\n]+", text) if line.lstrip().startswith("::") or "##[" in line]


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"github"}))
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_from_outside_is_a_workflow_command(text: str, form: str) -> None:
    assert runner_commands(FORMATS[form](hostile(text))) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_each_finding_is_one_workflow_command(text: str) -> None:
    lines = as_github(hostile(text)).encode("utf-8", "backslashreplace").decode().split("\n")
    levels = [re.match(r"::(\w+) title=[^:,]*::[^\r\n]*\Z", line) for line in lines[:-1]]
    assert [found and found[1] for found in levels] == ["error", "warning", "notice"]
    assert lines[-1] == ""


@given(st.text(max_size=40))
def test_a_markdown_row_has_as_many_cells_as_its_head(text: str) -> None:
    lines = as_markdown(hostile(text)).split("\n")
    head, rule, row = lines[2:5]
    assert lines[5] == ""
    assert cells(head) == cells(rule) == cells(row)


def cells(row: str) -> int:
    """The number of cells of a table's row, as GitHub's Markdown counts them."""
    return len(re.findall(r"\|", re.sub(r"\\.", "", row))) - 1


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_from_outside_is_code_in_markdown(text: str) -> None:
    """What is left beside code spans is words."""
    row = as_markdown(hostile(text)).split("\n")[4]
    rest = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", row)
    assert re.fullmatch(r"[A-Za-z0-9 ,.;:()'|\-]*", rest), rest
    assert "www." not in rest


@pytest.mark.parametrize("text", HOSTILE)
def test_junit_can_be_parsed_whatever_the_text(text: str) -> None:
    ElementTree.fromstring(as_junit(hostile(text)).encode())


@pytest.mark.parametrize("text", HOSTILE)
def test_json_has_the_text_as_it_is(text: str) -> None:
    answer = json.loads(as_json(hostile(text)))
    assert answer["new"][0]["hint"] == text


# -- Markdown


def test_markdown_is_a_table_for_a_summary() -> None:
    assert as_markdown(judged(finding(examples=[example(decision="d-1")]))) == (
        """\
### keyfence: 1 new finding; 1,204 commands evaluated

| rule | service | command | keys | owner | example | hint | decision | finding |
|---|---|---|---|---|---|---|---|---|
| scope.write | shop | SET | order | `#billing` | order:7 | its writers: billing | d-1 | f-9842600af79e |

"""
    )


def test_a_summary_stays_below_the_limit_of_github() -> None:
    text = as_markdown(worst())
    assert len(text.encode()) < 1024 * 1024
    assert "\nand 700 more\n" in text
    assert "\n- and 700 more\n" in text


# -- JSON


def test_the_keys_of_the_json_are_stable() -> None:
    answer = json.loads(as_json(judged(finding())))
    assert list(answer) == [
        *("outcome", "exit_code", "commands", "since", "baseline", "new", "should", "known"),
        *("waived", "quiet", "resolved", "unseen", "asked", "unjudged", "dropped"),
    ]
    assert answer["new"][0]["id"] == finding().id
    assert answer["asked"][1] == {"service": "shop", "rule": "scope.write", "commands": 80}
    assert json.loads(as_json(judged()))["new"] == []


@pytest.mark.parametrize(
    ("answer", "outcome", "code"),
    [
        (judged(finding()), "new findings", 1),
        (judged(), "clean", 0),
        (judged(commands=0), "no traffic", 3),
        (judged(unjudged=[unjudged()]), "not known", 3),
    ],
)
def test_the_json_names_the_outcome(answer: Judgement, outcome: str, code: int) -> None:
    found = json.loads(as_json(answer))
    assert (found["outcome"], found["exit_code"]) == (outcome, code)


# -- JUnit


def check_junit(root: ElementTree.Element) -> None:
    """The common ground of the schemas that Jenkins, GitLab and others read."""
    assert root.tag == "testsuites"
    total: dict[str, int] = {"tests": 0, "failures": 0}
    for suite in root:
        assert suite.tag == "testsuite"
        assert suite.get("name")
        assert {"errors": suite.get("errors"), "skipped": suite.get("skipped")} == {
            "errors": "0",
            "skipped": "0",
        }
        failed = 0
        for case in suite:
            assert case.tag == "testcase"
            assert case.get("name")
            assert case.get("classname")
            assert float(case.get("time", "")) >= 0
            assert [one.tag for one in case] in ([], ["failure"])
            for failure in case:
                assert failure.get("message")
                assert failure.get("type")
                failed += 1
        assert (suite.get("tests"), suite.get("failures")) == (str(len(suite)), str(failed))
        total = {"tests": total["tests"] + len(suite), "failures": total["failures"] + failed}
    assert {name: int(root.get(name, "")) for name in total} == total


def junit(answer: Judgement) -> ElementTree.Element:
    root = ElementTree.fromstring(as_junit(answer))
    check_junit(root)
    return root


def test_junit_has_a_case_for_each_rule_that_a_service_was_asked() -> None:
    root = junit(judged(finding(), finding(command="DEL"), finding(rule="ttl.required", service="cart")))
    cases = {(case.get("classname"), case.get("name")): len(case) for case in root.iter("testcase")}
    assert cases == {
        ("cart", "ttl.required"): 1,
        ("shop", "internal.error"): 0,
        ("shop", "scope.write"): 1,
    }
    (failure,) = root.findall(".//testcase[@name='scope.write']/failure")
    assert failure.get("message") == "2 new findings"
    assert failure.text is not None
    assert failure.text.splitlines()[0] == (
        "shop SET on order, 6 times: order:7 (d-82b2029b); its writers: billing; owner #billing; "
        "f-9842600af79e"
    )


def test_silence_fails_in_junit() -> None:
    root = junit(judged(asked={}, commands=0))
    (case,) = root.iter("testcase")
    assert (case.get("name"), len(case)) == ("traffic", 1)


def test_a_clean_run_passes_in_junit() -> None:
    assert junit(judged()).get("failures") == "0"


# -- GitHub


def test_findings_are_annotations() -> None:
    assert as_github(judged(finding(hint="50% of it"), finding(State.WAIVED, command="DEL"))) == (
        "::error title=keyfence%3A scope.write::shop SET on order, 6 times: order:7 (d-82b2029b); "
        "50%25 of it; owner #billing; f-9842600af79e\n"
        "::notice title=keyfence::1 new finding; 1,204 commands evaluated; not counted: 1 waived\n"
    )


def test_silence_is_an_annotation() -> None:
    assert as_github(judged(commands=0)) == (
        "::error title=keyfence%3A no traffic::no traffic was judged: this run proves nothing\n"
    )


NOT_KNOWN = (
    "not known for shop and ttl.required: commands were seen until 2023-11-14 12:00:00Z, and the entry"
)


@pytest.mark.parametrize("form", sorted({*FORMATS} - {"json"}))
def test_every_format_says_what_nobody_can_tell(form: str) -> None:
    for answer in (judged(unjudged=[unjudged()]), judged(finding(), unjudged=[unjudged()])):
        assert NOT_KNOWN in FORMATS[form](answer).replace("%3A", ":")


def test_the_text_says_that_the_policy_has_changed() -> None:
    assert as_text(judged(unjudged=[unjudged()])) == (
        "keyfence gate: not known: no new findings, but the policy has changed since some commands were "
        f"seen; 1,204 commands evaluated\n\n{NOT_KNOWN} order changed\n"
    )


def test_what_nobody_can_tell_fails_in_junit() -> None:
    root = junit(judged(unjudged=[unjudged()]))
    (failure,) = root.findall(".//testcase[@name='ttl.required']/failure")
    assert (failure.get("type"), root.get("failures")) == ("not known", "1")


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_every_format_takes_many_findings(form: str) -> None:
    assert FORMATS[form](worst())


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_every_format_names_rule_owner_example_hint_and_decision(form: str) -> None:
    text = FORMATS[form](judged(finding()))
    facts = ("scope.write", "shop", "SET", "order:7", "d-82b2029b", "#billing", "its writers: billing")
    assert [one for one in facts if one not in text] == []
