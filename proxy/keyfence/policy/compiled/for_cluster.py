"""The policy in force as a cluster would have it: the candidate of a rehearsal.

Rule: it differs from the policy in force by `cluster: true` in all of its files, and by nothing else.
"""

from __future__ import annotations

import dataclasses

from .policy import CompiledPolicy


def for_cluster(policy: CompiledPolicy) -> CompiledPolicy:
    """Returns the policy with `cluster: true` in all of its files."""
    homes = tuple(dataclasses.replace(one, cluster=True) for one in policy.homes)
    common = dataclasses.replace(policy.common, cluster=True)
    return dataclasses.replace(policy, cluster=True, homes=homes, common=common)
