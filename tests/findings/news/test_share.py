from __future__ import annotations

from keyfence.findings.news.plan import Target
from keyfence.findings.news.share import causes_of, is_quiet, only_of, share_of
from tests.findings.news.digests import digest, found, waiver

REST = Target("https://a.example", gets_rest=True)
SHOP = Target("https://b.example", owners=frozenset({"#shop"}))
BOTH = [REST, SHOP]
NEWS = digest(
    new=[found("f-1", owner="#shop"), found("f-2", owner="#other"), found("f-3")],
    ending=[waiver(owner="#shop"), waiver(owner="nobody")],
    ready=[{"rule": "scope.write", "service": "web", "new": True}],
)


def test_an_owner_gets_what_is_theirs_and_nothing_else() -> None:
    share = share_of(NEWS, SHOP, BOTH)
    assert [one["id"] for one in share["new"]] == ["f-1"]
    assert [one["owner"] for one in share["ending"]] == ["#shop"]
    assert (share["ready"], share["others"], share["owners"]) == ([], {}, ["#shop"])


def test_what_has_no_owner_with_a_target_goes_to_all_others() -> None:
    share = share_of(NEWS, REST, BOTH)
    assert [one["id"] for one in share["new"]] == ["f-2", "f-3"]
    assert [one["owner"] for one in share["ending"]] == ["nobody"]
    assert len(share["ready"]) == 1
    assert share["others"] == {"#shop": 1}


def test_nothing_is_left_out_between_the_targets() -> None:
    shares = [share_of(NEWS, one, BOTH) for one in BOTH]
    assert sorted(one["id"] for share in shares for one in share["new"]) == ["f-1", "f-2", "f-3"]


def test_one_that_is_asked_for_all_gets_all() -> None:
    assert len(only_of(NEWS, "")["new"]) == 3
    assert [one["id"] for one in only_of(NEWS, "#other")["new"]] == ["f-2"]


def test_a_share_is_quiet_if_all_in_it_was_told_before() -> None:
    told = {"rule": "scope.write", "service": "web", "new": False}
    assert is_quiet(share_of(digest(ready=[told]), REST, BOTH))
    assert not is_quiet(share_of(digest(ready=[told | {"new": True}]), REST, BOTH))
    assert not is_quiet(share_of(NEWS, SHOP, BOTH))
    assert is_quiet(share_of(digest(new=[found(owner="#shop")]), REST, BOTH))


def test_findings_of_one_cause_stand_together_and_others_alone() -> None:
    rows = [found("f-1", cause="a"), found("f-2", cause="a"), found("f-3"), found("f-4")]
    grouped = causes_of(rows)
    assert [(cause, len(of)) for cause, of in grouped] == [("a", 2), ("", 1), ("", 1)]
