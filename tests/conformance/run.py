"""Runs checks, one after another.

Rule: whatever a check or a proxy does, the run goes on with the next check, and ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tests.conformance.check import (
    Check,
    Failed,
    NotChecked,
    NotSupported,
    Outcome,
    Result,
)
from tests.conformance.trial import Place, Trial
from tests.conformance.wire import Ended, Silence

_LONGEST = 300  # characters of what was expected, and of what came
_GRACE = 0.5  # seconds for a check to notice that its time is over


def run(
    place: Place, checks: Sequence[Check], each: Callable[[Result], None] = lambda _: None, scale: float = 1
) -> list[Result]:
    """Runs the checks, and hands over each result as it comes. `scale` makes their time longer or shorter."""
    results = []
    for check in checks:
        results.append(_run(place, check, check.seconds * scale))
        each(results[-1])
    return results


def _run(place: Place, check: Check, seconds: float) -> Result:
    began = time.monotonic()
    missing = place.missing(check.needs)
    if missing is not None:
        return Result(check.group, check.sentence, Outcome.NOT_CHECKED, came=missing.value)
    trial = Trial(place, seconds)
    ends: list[tuple[Outcome, str, str]] = []
    thread = threading.Thread(target=lambda: ends.append(_end(check, trial, seconds)), daemon=True)
    thread.start()
    thread.join(seconds + _GRACE)
    if not ends:
        trial.interrupt()
        thread.join(_GRACE)
    outcome, *texts = ends[0] if ends else _too_late(seconds, "the check did not end")
    expected, came = (text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …" for text in texts)
    trial.close()
    return Result(check.group, check.sentence, outcome, expected, came, round(time.monotonic() - began, 3))


def _end(check: Check, trial: Trial, seconds: float) -> tuple[Outcome, str, str]:
    """Runs one check. Returns how it ended, what was expected, and what came."""
    try:
        check.run(trial)
    except Failed as failed:
        return Outcome.FAILED, failed.expected, failed.came
    except NotSupported as error:
        return Outcome.NOT_SUPPORTED, "", str(error)
    except NotChecked as why:
        return Outcome.NOT_CHECKED, "", str(why)
    except Silence as silence:
        return _too_late(seconds, str(silence))
    except Ended as end:
        return Outcome.FAILED, "a reply", str(end)
    except OSError as error:
        return Outcome.FAILED, "a connection", (error.strerror or str(error)).lower()
    except Exception as error:  # a reply of a form that the check does not foresee
        return Outcome.FAILED, "replies of Redis' form", f"{type(error).__name__}: {error}"
    return Outcome.PASSED, "", ""


def _too_late(seconds: float, came: str) -> tuple[Outcome, str, str]:
    return Outcome.FAILED, f"an end within {seconds:g} s", came


def groups(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    """The results of each group, in the order of the report."""
    for name in dict.fromkeys(result.group for result in results):
        yield name, [result for result in results if result.group == name]
