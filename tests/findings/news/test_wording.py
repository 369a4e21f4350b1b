from __future__ import annotations

import json

from keyfence.findings.finding import DAY
from keyfence.findings.news.document import WIDTH, as_text
from keyfence.findings.news.share import only_of
from keyfence.findings.news.wording import MAX_CAUSES, MAX_IN_JSON, as_object, document_of, headline
from tests.findings.news.digests import digest, found, waiver
from tests.findings.rows import NOON

EVERYTHING = digest(
    new=[
        found("f-1", cause="keys that begin with shop:crat: (did you mean shop:cart:?)", owner="#shop"),
        found("f-2", cause="keys that begin with shop:crat: (did you mean shop:cart:?)"),
        found("f-3", rule="ttl.required", severity="should", entry="cart", shape="", count=1),
    ],
    reopened=[found("f-4", state="reopened")],
    better=[found("f-5", state="quiet", why="not seen for 7 days")],
    lapsed=[waiver(owner="web-team", until=NOON)],
    ending=[
        waiver(what="break-glass", service="", rule="", reason="ann", on="", until=NOON + 60),
        waiver(owner="web-team", until=NOON + DAY / 2),
    ],
    ready=[
        {"rule": "scope.write", "service": "web", "new": True},
        {"rule": "scope.write", "service": "api", "new": True},
        {"rule": "key.format", "service": "web", "new": False},
    ],
    enforced=[{"rule": "scope.read", "service": "web", "at": NOON - 3600}],
    relaxed=[{"rule": "ttl.range", "service": "web", "at": NOON - 60}],
)

TEXT = """\
keyfence prod: 3 new findings, 1 seen again, 1 better, 1 waiver lapsed, 2 end
soon, 1 rule ready, 1 rule enforced, 1 rule no longer enforced

From 2023-11-13 12:00:00Z to 2023-11-14 12:00:00Z.

New findings
  keys that begin with shop:crat: (did you mean shop:cart:?): 2 findings, 14
    times
    f-1 web breaks key.unregistered with SET on shop:crat:<n>: 7 times, owner
      #shop
    f-2 web breaks key.unregistered with SET on shop:crat:<n>: 7 times
  f-3 web breaks ttl.required (should) with SET on cart: 1 time

Seen again
  f-4 web breaks key.unregistered with SET on shop:crat:<n>: 7 times

What got better
  f-5 web breaks key.unregistered with SET on shop:crat:<n>: 7 times, quiet: not
    seen for 7 days

Lapsed: what these waivers cover still passes
  waiver for web and ttl.required on cart: last day 2023-11-14, owner web-team,
    known

Ends before the next news
  break-glass for every service and every rule until 2023-11-14 12:01:00Z, by
    ann
  waiver for web and ttl.required on cart: last day 2023-11-14, owner web-team,
    known

Ready to be enforced
  scope.write for api, web
  key.format for web (as before)
  keyfence ready --write-modes prints the lines that enforce them

Enforced since then
  scope.read for web since 2023-11-14 11:00:00Z

No longer enforced
  ttl.range for web since 2023-11-14 11:59:00Z
"""


def test_a_digest_says_everything_in_plain_words() -> None:
    assert as_text(document_of(only_of(EVERYTHING, ""))) == TEXT
    assert max(map(len, TEXT.splitlines())) <= WIDTH


def test_a_digest_with_nothing_in_it_says_so() -> None:
    share = only_of(digest(environment=""), "")
    assert headline(share) == "keyfence: nothing new"
    assert as_text(document_of(share)).startswith("keyfence: nothing new\n\nFrom 2023-11-13")


def test_a_finding_links_to_the_page_if_its_address_is_known() -> None:
    document = document_of(only_of(EVERYTHING, ""), "https://kf.example/x/")
    links = [
        part.to for section in document.sections for one in section.lines for part in one.parts if part.to
    ]
    assert links[0] == "https://kf.example/x/findings/f-1"
    assert document.page == "https://kf.example/x"


def test_what_does_not_fit_is_counted() -> None:
    many = digest(new=[found(f"f-{number}") for number in range(100)], more={"new": 1_000})
    share = only_of(many, "")
    text = as_text(document_of(share))
    assert headline(share) == "keyfence prod: 1,100 new findings"
    assert f"  and {1_100 - MAX_CAUSES:,} more: keyfence findings\n" in text
    made = as_object(share)
    assert (len(made["new"]), made["more"]) == (MAX_IN_JSON, {"new": 1_100 - MAX_IN_JSON})
    # What is made of the JSON says the same.
    assert as_text(document_of(made)) == text


def test_the_json_has_these_fields() -> None:
    made = json.loads(json.dumps(as_object(only_of(EVERYTHING, "#shop"), "https://kf.example")))
    assert set(made) == {
        *("keyfence", "version", "text", "page", "environment", "since", "until", "owners"),
        *("new", "reopened", "better", "lapsed", "ending", "enforced", "relaxed"),
        *("ready", "knows_ready", "others", "more"),
    }
    assert (made["keyfence"], made["version"], made["owners"]) == ("news", 1, ["#shop"])
    (one,) = made["new"]
    assert set(one) == {
        *("id", "service", "rule", "severity", "command", "entry", "shape", "owner"),
        *("state", "why", "at", "count", "cause"),
    }
