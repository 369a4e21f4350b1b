"""Where a policy that is refused must show."""

from __future__ import annotations

import json

from tests.clients.running import ask, eventually, metric
from tests.servers import Keyfence
from tests.web.person import Person


def shows_refusal(keyfence: Keyfence, kind: str) -> None:
    """Wait until what was read last is refused for this, and find it on every surface."""

    def is_refused() -> bool:
        refused = json.loads(ask(keyfence, "/status")[1])["policy"]["refused"]
        return refused is not None and kind in refused["faults"][0]

    eventually(is_refused, f"it is refused: {kind}")
    assert ask(keyfence, "/readyz?strict")[0] == 503
    assert metric(keyfence, "keyfence_policy_refused") == 1
    ready, body = ask(keyfence, "/readyz")
    assert ready == 200
    assert any(kind in warning for warning in json.loads(body)["warnings"])
    eventually(
        lambda: kind in Person(keyfence).read("/"), "the page, which keeps an answer for a moment, has it"
    )
