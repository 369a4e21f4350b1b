"""Seeds of schedules that once broke an invariant, each with its cause. The tests play them in each run.

A seed plays another schedule once the models draw otherwise. So a fault of keyfence's gets a test of its own
where it lies, too.
"""

from __future__ import annotations

FOUND = {
    122: "what a client left behind went to a former primary: as without keyfence, so it is allowed",
    725: "a client that left while it was connecting stayed: a fault of the models",
}
