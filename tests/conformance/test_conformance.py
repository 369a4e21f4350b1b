"""keyfence passes each check, before one Redis and before a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import NO_CLUSTER, cluster_binary
from tests.conformance import checks, started  # noqa: F401  # `checks` fills CHECKS
from tests.conformance.check import CHECKS, GROUPS, Outcome, Result
from tests.conformance.report import lines_of
from tests.conformance.run import run
from tests.servers import NO_SERVER, server_binaries

# A check that passes does not take longer for it: the machine may be busy.
SCALE = 6


def having(results: list[Result], outcome: Outcome) -> set[str]:
    return {"\n".join(lines_of(result)) for result in results if result.outcome is outcome}


def sentences(results: list[Result], outcome: Outcome) -> set[str]:
    return {result.sentence for result in results if result.outcome is outcome}


@pytest.mark.timeout(300)
@pytest.mark.skipif(not server_binaries(), reason=NO_SERVER)
def test_before_one_redis_every_check_passes(tmp_path: Path) -> None:
    with started.before_one_redis(tmp_path) as place:
        results = run(place, CHECKS, scale=SCALE)
    assert having(results, Outcome.FAILED) == set()
    assert having(results, Outcome.NOT_SUPPORTED) == set()
    unchecked = [result.group for result in results if result.outcome is Outcome.NOT_CHECKED]
    assert set(unchecked) == {"a cluster that changes"}


@pytest.mark.timeout(300)
@pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)
def test_before_a_cluster_no_check_fails(tmp_path: Path) -> None:
    """What changes the cluster is tested in tests/end_to_end/test_one_address.py."""
    with started.before_a_cluster(tmp_path, disturbs=False) as place:
        results = run(place, CHECKS, scale=SCALE)
    assert having(results, Outcome.FAILED) == set()
    assert sentences(results, Outcome.NOT_SUPPORTED) == {
        "With RESP3 a subscriber may run any command, and gets pushes",
        "CLIENT UNBLOCK ends the waiting of another client",
        "CLIENT TRACKING tells of another client's write",
        "MONITOR shows the commands of others",
        "SELECT gives each database keys of its own",
        "A SELECT in a transaction lasts beyond EXEC",
        "SELECT of one client does not move others",
    }
    unchecked = {result.group for result in results if result.outcome is Outcome.NOT_CHECKED}
    assert unchecked == {"same bytes as Redis", "a cluster that changes"}


def test_each_check_has_a_sentence_of_its_own_and_each_group_has_checks() -> None:
    assert len({check.sentence for check in CHECKS}) == len(CHECKS)
    assert {check.group for check in CHECKS} == set(GROUPS)
