from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyfence.policy.compiled.ttl import TtlRule
from keyfence.policy.loading.load import load_policy
from keyfence.policy.wording.tables import SHOWN_FIELDS, tables, ttl_text
from tests.policy.cases import POLICIES

POLICY = """
policy: shop
owner: {team: shop, contact: "#shop"}
claims: ["shop:"]
services: [orders, billing, worker]
placeholders: {id: "[a-z0-9]+"}
databases: [0, 3]
commands: {forbid: [KEYS]}
scopes:
  shop: {prefix: "shop:", writers: [orders], readers: [billing]}
keys:
  order:
    about: an order until it is paid
    key: "shop:order:<id>"
    type: hash
    ttl: {min: 1h, max: 2d, default: 1d}
    writers: [orders]
    consumers: [worker]
    readers: [billing, orders]
    fields: {state: "open|paid", "<id>": integer}
    max_value: 64kb
    max_fields: 100
  note: {key: "shop:note:<id>", type: string, ttl: none, values: integer}
  log: {key: "shop:log", type: stream, maxlen: ~1000, commands: {allow: [XADD, XREAD]}}
legacy:
  allow: [read]
  keys: {"old:<id>": order, "older:<id>": order}
grants:
  billing: {commands: [DEL, UNLINK], keys: ["shop:order:*"], until: 2999-01-01, on_expiry: refuse}
channels:
  events: {channel: "shop:events:<id>", publishers: [orders], subscribers: [billing]}
scripts: {}
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("policy") / "shop.yaml"
    path.write_text(POLICY)
    return tables(load_policy(path))


def test_a_policy_says_whose_it_is_and_who_is_in_it(shown: dict[str, Any]) -> None:
    (home,) = shown["files"]
    assert (home["policy"], home["owner"], home["contact"]) == ("shop", "shop", "#shop")
    assert shown["services"][:3] == ["orders", "billing", "worker"]
    assert (shown["claims"], shown["databases"], shown["forbid"]) == (["shop:"], [0, 3], ["KEYS"])
    assert [(one["name"], one["writers"]) for one in shown["scopes"]] == [("shop", ["orders"])]


def test_an_entry_is_a_row_with_its_rights_requirements_and_deprecated_forms(shown: dict[str, Any]) -> None:
    by_name = {one["name"]: one for one in shown["entries"]}
    order, note, log = by_name["order"], by_name["note"], by_name["log"]
    assert (order["name"], order["about"], order["types"], order["owner"]) == (
        *("order", "an order until it is paid"),
        *(["hash"], "#shop"),
    )
    (form,) = order["forms"]
    assert form["key"] == "shop:order:<id>"
    rights = {name: form[name] for name in ("writers", "consumers", "readers")}
    assert rights == {"writers": ["orders"], "consumers": ["worker"], "readers": ["billing"]}
    assert order["ttl"] == "required, at least 1h, at most 2d, usually 1d"
    assert set(order["fields"]) == {"state", "(a id)"}
    assert order["more"] == {"value at most": "64kb", "fields at most": "100"}
    assert order["legacy"] == ["old:<id>", "older:<id>"]
    assert (note["ttl"], note["more"], note["legacy"]) == ("none", {"value": "an integer"}, [])
    assert log["more"] == {"stream length at most": "~1000", "only these commands": "XADD, XREAD"}


def test_grants_and_channels_are_listed(shown: dict[str, Any]) -> None:
    (grant,) = shown["grants"]
    assert (grant["service"], grant["commands"], grant["keys"]) == (
        *("billing", ["DEL", "UNLINK"]),
        ["shop:order:*"],
    )
    assert grant["lapses"] > 3e10
    (channel,) = shown["channels"]
    assert channel == {
        "name": "events",
        "channel": "shop:events:<id>",
        "publishers": ["orders"],
        "subscribers": ["billing"],
    }


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (None, ""),
        (TtlRule(none=True), "none"),
        (TtlRule(), "required"),
        (TtlRule(required=False, max=90_000), "optional, at most 90s"),
        (TtlRule(at="write"), "required, set by the write itself"),
    ],
)
def test_a_time_to_live_in_words(rule: TtlRule | None, text: str) -> None:
    assert ttl_text(rule) == text


FILES = sorted(path for path in POLICIES.rglob("*.yaml") if not path.name.endswith(".test.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_shipped_policy_is_shown_with_all_its_entries(file: Path) -> None:
    policy = load_policy(file)
    written = yaml.safe_load(file.read_text())
    shown = tables(policy)
    json.dumps(shown)
    assert [one["name"] for one in shown["entries"]] == list(
        dict.fromkeys(one.name for one in policy.targets if one.kind == "entry")
    )
    assert {one["name"] for one in shown["entries"]} == set(written.get("keys", {}))
    for entry in shown["entries"]:
        own = written["keys"][entry["name"]]
        assert entry["about"] == own.get("about", "")
        assert entry["forms"]
        assert len(entry["fields"]) <= SHOWN_FIELDS
        of_all = {service for form in entry["forms"] for service in form["writers"] + form["readers"]}
        assert of_all <= set(shown["services"])
    assert {one["name"] for one in shown["channels"]} == set(written.get("channels", {}))
