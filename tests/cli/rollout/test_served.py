from __future__ import annotations

import dataclasses
from pathlib import Path

from keyfence.cli.rollout.served import for_a_command
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides

# Every setting by which a keyfence meets others: addresses, files, a webhook.
CONFIG = """
policy: shop.yaml
reload: auto
listeners:
- {listen: "0.0.0.0:7101", service: shop}
- {listen: "unix:/run/keyfence/billing.sock", service: billing}
admin: {listen: "0.0.0.0:9464", token_file: /run/secrets/token, audit_log: /var/log/audit}
metrics: 0.0.0.0:9465
decision_log: {path: /var/log/keyfence.jsonl, mask_keys: yes}
findings: {url: "postgresql://keyfence@db/keyfence", keep: 30d}
notify: {webhook: "https://hooks.example/x"}
news: {every: day, to: {webhook: "https://hooks.example/x"}}
workers: 4
drain: 30s
modes: [{mode: enforce}]
limits: {request: 1mb}
environment: staging
"""
# What a policy's evaluation depends on, and how clients are known.
KEPT = {
    *("policy", "policy_server", "policy_trust", "policy_signed"),
    *("modes", "waivers", "waivers_file", "waivers_source", "identify", "limits", "mask_keys"),
    *(
        "findings_keep",
        "name_services",
        "source",
        "secret_files",
        "admin_names",
        "connect_timeout",
        "shared_connections",
    ),
    *("upstream", "upstream_ca", "upstream_cert", "upstream_key", "upstream_verify"),
}


def test_only_what_decides_about_commands_comes_from_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "keyfence.yaml"
    path.write_text(CONFIG)
    before = load_settings(str(path), Overrides())
    after = for_a_command(before, ["shop", ""], "sqlite:////tmp/f.db", "")
    names = {field.name for field in dataclasses.fields(after)}
    assert {name for name in KEPT if getattr(before, name) != getattr(after, name)} == set()
    assert {name: getattr(after, name) for name in names - KEPT} == {
        "environment": "",
        "reload": "manual",
        "listeners": after.listeners,
        "admin": "127.0.0.1:0",
        "admin_token_file": "",
        "admin_tokens": (),
        "admin_audit_log": "",
        "metrics": None,
        "decision_log": "",
        "findings": "sqlite:////tmp/f.db",
        "findings_are_default": False,
        "notify": None,
        "news": None,
        "workers": 0,
        "announce": None,
        "expose": None,
        "split": {},
        "replicas": (),
        "reads": {},
        "drain": 1.0,
        "record": "",
    }
    assert [(one.listen, one.service) for one in after.listeners] == [
        ("127.0.0.1:0", "shop"),
        ("127.0.0.1:0", ""),
    ]
