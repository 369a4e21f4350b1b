"""How values are worded on the page: times, numbers, keys.

Rule: text from outside becomes one line of printable characters. Whoever writes a key must not be able to
move what stands beside it.
"""

from __future__ import annotations

import datetime
import math
import shlex
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from keyfence.findings.finding import AT_REST, State
from keyfence.policy.rules import RULES
from keyfence.policy.units import counted, duration_text, plural

MINUTE, HOUR, DAY = 60, 3600, 86_400
NONE = "–"
_ACTIONS = {
    "observed": "observed: it passed and was reported",
    "refused": "refused with NOPERM",
    "waived": "waived: a waiver covers it",
    "late": "found late, by asking Redis afterwards",
    "at rest": "keys that break the rule now, as the last audit found",
}
HEALTHS = {
    "ok": "it reports, and its policy is what it should be",
    "copy": "its policy is the copy on disk, which the server has not confirmed since the start",
    "stale": "its policy is older than it may be",
    "refused": "it has refused the policy that it read last",
    "silent": "it has not reported for half a minute",
}
STATES: dict[str, str] = {
    State.NEW: "first seen within the last day",
    State.OPEN: "seen before, and still happening",
    State.REOPENED: "seen again after it was quiet, resolved or waived",
    State.WAIVED: "covered by a waiver",
    State.QUIET: "not seen for 7 days in which keyfence was looking",
    State.RESOLVED: "the policy in force allows every example",
}
STANDINGS = {
    "enforced": "violations are refused",
    "ready": "commands were checked against it for long enough, and none broke it: it can be enforced",
    "not ready": "enforcing it would refuse commands",
    "no traffic": "no command was checked against it",
    "not known": "without a findings store, keyfence does not keep for how long nothing broke a rule",
    "gap": "keyfence has not been looking for long enough",
    "disabled": "the rule is switched off",
}


def ago(at: float | None, now: float | None = None) -> Markup:
    """A time in the past, in words, with the exact time as its title."""
    if not at:
        return Markup(NONE)
    past = (time.time() if now is None else now) - at
    return _time(at, "just now" if past < MINUTE else f"{span(past)} ago")


def _time(at: float, text: str) -> Markup:
    when = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        when.isoformat(timespec="seconds"), f"{when:%Y-%m-%d %H:%M:%S} UTC", text
    )


def clock(at: float | None) -> Markup:
    """A time, to the second."""
    if not at:
        return Markup(NONE)
    return _time(at, f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S}")


def span(seconds: float) -> str:
    """A time span in its largest unit: `3 days`."""
    for size, name in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")):
        number = int(seconds // size)
        if number >= (2 if name == "day" else 1):
            return f"{number} {plural(number, name)}"
    return counted(max(int(seconds), 0), "second")


def number(value: float | None) -> str:
    """A number with thin spaces between its thousands."""
    if value is None:
        return NONE
    if value == int(value):
        return f"{int(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.1f}"


def rate(value: float | None) -> str:
    """A number of something per second."""
    if value is None:
        return NONE
    return number(round(value)) if value >= 10 else f"{value:.1f}"


def share(value: float) -> str:
    """A part of a whole, in percent."""
    return f"{value:.0%}" if value >= 0.005 else "< 1%"


def latency(seconds: float | None) -> str:
    """A short time. Quantiles are upper bounds, hence the sign."""
    if seconds is None:
        return NONE
    if math.isinf(seconds):
        return "> 2 s"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"≤ {seconds / size:g} {unit}"
    return f"≤ {seconds:g} s"


def count_of(value: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 finding`, `2 findings`."""
    return f"{number(value)} {plural(value, one, many)}"


def inert(text: object) -> str:
    """A text from outside as one line, with a visible sign for each character that does not print."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in str(text))


def lines_of(text: str) -> str:
    """A text of several lines, each of them inert."""
    return "\n".join(map(inert, text.rstrip("\n").split("\n")))


def key(text: object) -> Markup:
    """A key, name or command from outside, isolated from the text around it."""
    return Markup("<code><bdi>{}</bdi></code>").format(inert(text)) if text else Markup(NONE)


def command(text: str) -> Markup:
    """A command to copy. A line of it breaks between words: an option does not lose its dash."""
    return Markup(" ").join(Markup("<span>{}</span>").format(word) for word in inert(text).split(" "))


def quoted(words: Sequence[str]) -> str:
    """The arguments of a command on one line, quoted as in a shell."""
    return inert(shlex.join(words))


def badge(word: str, meaning: str = "") -> Markup:
    """A state or standing, with its meaning as the title."""
    meaning = meaning or STATES.get(word) or STANDINGS.get(word) or _ACTIONS.get(word) or ""
    kind = word.replace(" ", "-")
    return Markup('<span class="badge {}" title="{}">{}</span>').format(kind, meaning, word)


def url(path: str, **parameters: object) -> str:
    """A path with parameters, without the empty ones."""
    given = {name: value for name, value in parameters.items() if value not in ("", None, 0)}
    return f"{path}?{urllib.parse.urlencode(given)}" if given else path


def segment(text: str) -> str:
    """A text as one segment of a path."""
    return urllib.parse.quote(text, safe="")


def service_page(service: str) -> str:
    """The path of a service's page; keys at rest are no service's, so theirs is the list of findings."""
    return url("/findings", service=service) if service == AT_REST else f"/services/{segment(service)}"


def with_parameters(parameters: Mapping[str, str], **changed: object) -> str:
    """A query that repeats some parameters and changes others; "" removes one."""
    merged: dict[str, Any] = {**parameters, **changed}
    kept = {name: value for name, value in merged.items() if value not in ("", None, 0)}
    return "?" + urllib.parse.urlencode(kept) if kept else "?"


def sentence(text: str) -> str:
    """A text as a sentence: with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


def meaning_of(rule: str) -> str:
    """What a violation of a rule means, as a sentence."""
    found = RULES.get(rule)
    return sentence(found.meaning) if found is not None else ""


def remedy_of(rule: str) -> str:
    """What to do about a violation of a rule, as a sentence."""
    found = RULES.get(rule)
    return sentence(found.remedy) if found is not None else ""


def rights_text(one: Mapping[str, Any]) -> str:
    """Who may do what with keys, in one line."""
    parts = [f"{word} {', '.join(one[name])}" for name, word in _RIGHTS.items() if one[name]]
    return "; ".join(parts) or "nobody"


_RIGHTS = {"writers": "written by", "consumers": "consumed by", "readers": "read by"}

FILTERS: dict[str, Any] = {
    "ago": ago,
    "clock": clock,
    "span": span,
    "number": number,
    "rate": rate,
    "share": share,
    "latency": latency,
    "key": key,
    "command": command,
    "inert": inert,
    "sentence": lambda text: inert(sentence(text)),
    "lines": lines_of,
    "badge": badge,
    "quoted": quoted,
    "segment": segment,
    "service_page": service_page,
    "meaning": meaning_of,
    "remedy": remedy_of,
    "rights": rights_text,
    "duration": duration_text,
}
GLOBALS: dict[str, Any] = {
    "count_of": count_of,
    "url": url,
    "with_parameters": with_parameters,
    "STATES": STATES,
    "HEALTHS": HEALTHS,
    "STANDINGS": STANDINGS,
}
