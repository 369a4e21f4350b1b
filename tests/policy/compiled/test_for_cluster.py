"""The policy of a rehearsal."""

from __future__ import annotations

from keyfence.policy.compiled.for_cluster import for_cluster
from keyfence.policy.loading.load import parse_policy

POLICY = parse_policy("""policy: p
claims: ["a:"]
services: [one]
scopes: {a: {prefix: "a:", writers: [one], unregistered: allow}}
""")


def test_it_is_the_policy_in_force_for_a_cluster_in_all_of_its_files() -> None:
    made = for_cluster(POLICY)
    assert made.cluster
    assert all(home.cluster for home in (*made.homes, made.common))
    assert (made.revision, made.targets, made.classifier) == (
        POLICY.revision,
        POLICY.targets,
        POLICY.classifier,
    )
    assert not POLICY.cluster
