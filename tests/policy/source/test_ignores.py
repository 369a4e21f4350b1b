"""The codes of warnings, and the comments that acknowledge them in place."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from keyfence.authoring.lint import check_policy
from keyfence.policy.diagnostics import Diagnostic
from keyfence.policy.source.ignores import CODES, COMMENT_CODES
from tests.policy.cases import POLICIES
from tests.servers import PROJECT

TODAY = datetime.date(2026, 6, 15)
HEAD = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {id: "[a-z]{1,9}"}
scopes: {s: {prefix: "a:", writers: [one], readers: [two]}}
"""
ALL = """policy: p
services: [one, two, idle]  # {services}
placeholders:
  w: ".{1,9}"  # {colon}
  id: "[a-z]"
names: {levels: {max: 4}}
readers: [one]  # {rights}
bind: {ns: {two: [x, y]}, who: {from: user}}
scopes:
  s: {prefix: "a:", writers: [one], readers: [two]}
  t: {prefix: "t:"}  # {unwritten}
keys:
  timed: {key: "a:timed", writers: one, type: list, ttl: {max: 1h, at: write}}  # {timed}
  foreign: {key: "a:f:<id>", writers: [two]}  # {foreign}
  colon: {key: "a:c:<w>"}
  long: {key: "a:b:c:d:e"}  # {long}
  never: {key: "a:n:<id>"}  # {never}
  family: {key: "b:<ns>:<id>", writers: [two]}
  own: {key: "c:<who>:<id>", writers: [two]}
LETTERS
legacy:
  keys:
    "old:<id>": family  # {unclear}
    "a:f:a": foreign  # {legacy}
    "older:<id>": {entry: own, allow: [read]}  # {unowned}
grants: {one: {commands: [SCAN], until: 2026-06-20}}  # {ends}
scripts: {x: {sha1: aaaaaaaa..., keys: 1}}  # {sha1}
""".replace("LETTERS", "\n".join(f'  n{one}: {{key: "a:n:{one}"}}' for one in "abcdefghijklmnopqrstuvwxyz"))
PLACES = {
    "services": "idle-service",
    "rights": "idle-rights",
    "unclear": "unclear-form",
    "unowned": "unowned-form",
    "colon": "colon",
    "unwritten": "unwritten-scope",
    "foreign": "foreign-entry",
    "long": "name-rules",
    "never": "never-matches",
    "legacy": "legacy-overlap",
    "ends": "ends-soon",
    "sha1": "short-sha1",
    "timed": "ttl-at-write",
}


def checked(folder: Path, text: str) -> tuple[list[Diagnostic], list[Diagnostic], str]:
    file = folder / "p.yaml"
    file.write_text(text)
    return check_policy(file, TODAY)


def with_comments(comment: str) -> str:
    """A policy with a warning of each kind, and a comment at each; {} stands for the code."""
    text = ALL
    for place, code in PLACES.items():
        text = text.replace(f"{{{place}}}", comment.format(code))
    return text


def codes(folder: Path, text: str) -> list[str]:
    errors, warnings, _ = checked(folder, text)
    assert [str(one) for one in errors] == []
    return [one.code for one in warnings]


def test_every_kind_of_warning_has_a_code(tmp_path: Path) -> None:
    assert sorted(codes(tmp_path, with_comments("{}"))) == sorted(PLACES.values())
    assert set(PLACES.values()) == CODES.keys() - {"stricter-file", "claim-inside", "idle-delegate"}


def test_every_kind_of_warning_can_be_ignored_in_place(tmp_path: Path) -> None:
    errors, warnings, summary = checked(tmp_path, with_comments("keyfence: ignore {} known"))
    assert (errors, warnings) == ([], [])
    assert f": 0 errors, 0 warnings ({len(PLACES)} ignored); policy p" in summary


def test_an_overruled_file_may_acknowledge_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "policy: a\nclaims: [a]\nservices: [x]\nkeys: {k: {key: a, writers: x}}\n"
        "unregistered_scripts: declared  # keyfence: ignore stricter-file until b follows\n"
    )
    (tmp_path / "b.yaml").write_text("policy: b\nclaims: [b]\nkeys: {l: {key: b, writers: x}}\n")
    errors, warnings, summary = check_policy(tmp_path, TODAY)
    assert (errors, warnings) == ([], [])
    assert "0 warnings (1 ignored)" in summary
    (tmp_path / "a.yaml").write_text((tmp_path / "a.yaml").read_text().replace("keyfence:", ""))
    assert [one.code for one in check_policy(tmp_path, TODAY)[1]] == ["stricter-file"]


@pytest.mark.parametrize(
    "text",
    [
        'keys: {k: {key: "a:<id>", writers: [two]}}  # keyfence: ignore foreign-entry known\n',
        'keys:\n  # keyfence: ignore foreign-entry known\n  k: {key: "a:<id>", writers: [two]}\n',
        "keys:\n  # keyfence: ignore foreign-entry known\n  # to everybody\n"
        '  k: {key: "a:<id>", writers: [two]}\n',
        "keys:\n  k:  # see below  # keyfence: ignore foreign-entry known\n"
        '    key: "a:<id>"\n    writers: [two]\n',
        'keys:\n  k: {key: "a:<id>", writers: [two]}  #keyfence:ignore foreign-entry known\n',
    ],
)
def test_a_comment_may_follow_the_line_or_precede_it(text: str, tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + text) == []


def test_a_comment_at_an_entry_s_name_applies_to_the_whole_entry(tmp_path: Path) -> None:
    text = 'names: {levels: {max: 1}}\nkeys:\n  k:  # keyfence: ignore name-rules known\n    key: "a:<id>"\n'
    assert codes(tmp_path, HEAD + text) == []
    assert codes(tmp_path, HEAD + text.replace("keyfence", "")) == ["name-rules"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'keys: {k: {key: "a:<id>"}}  # keyfence: ignore foreign-entry known',
            "6:29: warning: there is no warning foreign-entry here to ignore; remove the comment",
        ),
        (
            'keys:\n  # keyfence: ignore foreign-entry known\n  j: {key: "a:j"}\n'
            '  k: {key: "a:k", writers: [two]}',
            "7:3: warning: there is no warning foreign-entry here to ignore; remove the comment",
        ),
        (
            'keys: {k: {key: "a:<id>", writers: [two]}}  # keyfence: ignore foreign-entry',
            "6:45: warning: a reason is missing; write keyfence: ignore foreign-entry REASON",
        ),
        (
            'keys: {k: {key: "a:<id>", writers: [two]}}  # keyfence: ignore foreign known',
            "6:45: warning: 'foreign' is not the code of a warning; did you mean foreign-entry?; "
            "write keyfence: ignore CODE REASON",
        ),
        (
            'keys: {k: {key: "a:<id>"}}  # keyfence: ignore',
            "6:29: warning: no code; write keyfence: ignore CODE REASON",
        ),
        (
            'keys: {k: {key: "a:<id>"}}  # keyfence: ignore unused-ignore so',
            "6:29: warning: 'unused-ignore' is not the code of a warning",
        ),
    ],
)
def test_an_unused_comment_is_reported(text: str, told: str, tmp_path: Path) -> None:
    _, warnings, _ = checked(tmp_path, HEAD + text + "\n")
    lines = [str(one).removeprefix(f"{tmp_path}/p.yaml:") for one in warnings if one.code in COMMENT_CODES]
    assert len(lines) == 1
    assert lines[0].startswith(told)


@pytest.mark.parametrize(
    "text",
    [
        'about: "see # keyfence: ignore colon x"\n',
        "about: |\n  see\n  # keyfence: ignore colon x\n",
        "about: 'see\n  # keyfence: ignore colon x'\n",
        "about: see#keyfence: ignore\n".replace(": ignore", ""),
        "# keyfence: ignores nothing\n",
    ],
)
def test_text_in_a_scalar_is_not_a_comment(text: str, tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + text) == []


def test_comments_are_read_in_a_file_that_libyaml_rejects(tmp_path: Path) -> None:
    errors, _, _ = checked(tmp_path, HEAD + "services_: [shop:]  # keyfence: ignore ends-soon known\n")
    assert len(errors) == 1


def test_no_comment_hides_an_error(tmp_path: Path) -> None:
    text = "legacy: {until: 2026-01-01}  # keyfence: ignore ends-soon known\n"
    errors, warnings, _ = checked(tmp_path, HEAD + text)
    assert [one.message for one in errors] == ["legacy ended on 2026-01-01; remove it or change the date"]
    assert [one.code for one in warnings] == ["unused-ignore"]


def test_a_policy_with_errors_has_no_unused_comments(tmp_path: Path) -> None:
    text = 'nonsense: 1\nkeys: {k: {key: "a:<id>"}}  # keyfence: ignore foreign-entry known\n'
    errors, warnings, _ = checked(tmp_path, HEAD + text)
    assert (len(errors), warnings) == (1, [])


def test_the_documentation_has_the_table_of_codes() -> None:
    text = (PROJECT / "docs" / "tools.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \|", text, re.MULTILINE)
    documented = {code: meaning for code, meaning in rows if code in CODES | COMMENT_CODES}
    assert documented == {**CODES, **COMMENT_CODES}


@pytest.mark.parametrize(
    "path", [*(one for one in POLICIES.glob("*.yaml") if ".test." not in one.name)], ids=lambda one: one.name
)
def test_the_shipped_policies_have_no_warning(path: Path) -> None:
    errors, warnings, _ = check_policy(path, TODAY)
    assert [str(one) for one in (*errors, *warnings)] == []


# A typical convention: six services, thirty kinds of keys, ids before suffixes, queues that other services
# consume, and a scope in which each entry sets its own rights.
KINDS = [
    *(f'  user-{part}: {{key: "acme:user:<id>:{part}", readers: [web, jobs]}}' for part in "abcdefghij"),
    *(f'  order-{part}: {{key: "acme:order:<id>:{part}", readers: [mail]}}' for part in "abcdefghij"),
    *(
        f'  queue-{part}: {{key: "acme:user:queue:{part}", type: list, writers: [users, jobs]}}'
        for part in "abcde"
    ),
    *(
        f'  shared-{part}: {{key: "acme:shared:{part}:<id>", writers: [{service}], readers: [web]}}'
        for part, service in zip("abcde", ("web", "users", "orders", "jobs", "mail"), strict=True)
    ),
]
LARGE = """policy: acme
claims: ["acme:"]
services: [web, users, orders, jobs, mail, audit]
placeholders: {id: "[0-9]{1,12}"}
scopes:
  user: {prefix: "acme:user:", writers: [users]}
  order: {prefix: "acme:order:", writers: [orders], readers: [web]}
  shared: {prefix: "acme:shared:"}
keys:
KINDS
channels: {news: {channel: "acme:news", publishers: [web], subscribers: [audit]}}
""".replace("KINDS", "\n".join(KINDS))


def test_a_correct_policy_of_thirty_kinds_has_no_warning(tmp_path: Path) -> None:
    errors, warnings, _ = checked(tmp_path, LARGE)
    assert len(KINDS) == 30
    assert [str(one) for one in (*errors, *warnings)] == []


def test_the_summary_names_the_other_entries_that_a_scan_finds(tmp_path: Path) -> None:
    text = 'keys: {k: {key: "a:<id>:x"}, l: {key: "a:<id>:y"}, m: {key: "a:<id>"}, n: {key: "a:n:<id>"}}\n'
    lines = checked(tmp_path, HEAD + text)[2].splitlines()
    assert lines[1:] == [
        "  k  SCAN 0 MATCH a:*  (also finds l, m, n)",
        "  l  SCAN 0 MATCH a:*  (also finds k, m, n)",
        "  m  SCAN 0 MATCH a:*  (also finds k, l, n)",
        "  n  SCAN 0 MATCH a:n:*",
    ]
