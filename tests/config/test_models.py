from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from keyfence.config import checks
from keyfence.config.defaults import DEFAULT_ADMIN, DEFAULT_LISTEN
from keyfence.config.limits import ClientLimits
from keyfence.config.loading import load_settings
from keyfence.config.models import ConfigModel, LimitsModel
from keyfence.config.settings import Overrides, Settings
from keyfence.identity.client_facts import Evidence
from keyfence.identity.passwords import Login
from keyfence.net.addresses import parse_listen
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import ModeRule, Waiver
from keyfence.policy.source.validate import _model_in
from keyfence.resp.limits import IDENTIFIED, RequestLimits
from keyfence.upstream.address import Sentinels, parse_upstream, without_password
from keyfence.upstream.credentials.local import FromCommand, FromEnvironment, FromFile
from tests.servers import PROJECT

SERVICES = ("CubeMaster", "CubeProxy", "unknown")
NOTHING = Overrides()


def load(tmp_path: Path, text: str, flags: Overrides = NOTHING) -> Settings:
    file = tmp_path / "keyfence.yaml"
    file.write_text(text)
    return load_settings(str(file), flags)


def faults(tmp_path: Path, text: str, flags: Overrides = NOTHING) -> list[str]:
    """Every fault as "line:column: message", without the file's path."""
    with pytest.raises(FileError) as caught:
        load(tmp_path, text, flags).check_against(SERVICES)
    return [
        str(one).removeprefix(f"{tmp_path}/").replace(": error: ", ": ") for one in caught.value.diagnostics
    ]


# -- faults and their places

FAULTS = {
    "policy: p\nlistener: []": ["keyfence.yaml:2:1: unknown key 'listener'; did you mean listeners?"],
    "policy: p\npolicy: q": ["keyfence.yaml:2:1: duplicate key 'policy'; the first one is in line 1"],
    "policy: [p]": ["keyfence.yaml:1:9: expected a mapping (name: value), not a list"],
    "policy:\nlisteners: 5": ["keyfence.yaml:2:12: expected a list, not '5'"],
    "admin: none": ["keyfence.yaml:1:1: no policy; name one with policy: or --policy"],
    "policy: p\nworkers: 0": ["keyfence.yaml:2:10: '0' is not a number of workers; write 1 to 256, or auto"],
    "policy: p\nworkers: []": ["keyfence.yaml:2:10: expected a number of workers, or auto"],
    "policy: p\ndrain: 5": [
        "keyfence.yaml:2:8: '5' is not a duration; write a number and its unit, as 500ms, 60s, 10m, 1h or 7d"
    ],
    "policy: p\nadmin: here": [
        "keyfence.yaml:2:8: 'here' is not an address; write HOST:PORT, as in 127.0.0.1:6380 or [::1]:6380, "
        "or none"
    ],
    "policy: p\nlisteners: [{service: a}]": ["keyfence.yaml:2:13: 'listen' is missing"],
    "policy: p\nlisteners: [{listen: '127.0.0.1'}, {listen: '::1:5'}, {listen: ':99999'}]": [
        "keyfence.yaml:2:22: '127.0.0.1' is not an address; "
        "write HOST:PORT, as in 127.0.0.1:6380 or [::1]:6380",
        "keyfence.yaml:2:45: '::1:5': put an IPv6 address in brackets, as in [::1]:6380",
        "keyfence.yaml:2:64: ':99999' is not an address; write HOST:PORT, as in 127.0.0.1:6380 or [::1]:6380",
    ],
    "policy: p\nlisteners: [{listen: '127.0.0.1:0', service: CubeMastr}]": [
        "keyfence.yaml:2:46: 'CubeMastr' is not a service of the policy; did you mean CubeMaster?"
    ],
    "policy: p\nmodes: [{mode: of}]": [
        "keyfence.yaml:2:16: 'of' is not admitted here; expected observe, enforce or disabled"
    ],
    "policy: p\nmodes: [{rule: scope.writ, mode: observe}, {service: X, mode: observe}]": [
        "keyfence.yaml:2:16: 'scope.writ' is not a rule; did you mean scope.write?",
        "keyfence.yaml:2:54: 'X' is not a service of the policy; known: CubeMaster, CubeProxy, unknown",
    ],
    "policy: p\nupstream: redis://u:secret@h:0": [
        "keyfence.yaml:2:11: the upstream's port is not a number from 1 to 65535: 'redis://u:***@h:0'"
    ],
    "policy: p\nupstream: {url: 'http://u:secret@h', ur: x}": [
        "keyfence.yaml:2:17: 'http://u:***@h' is not an upstream URL; write redis://HOST:PORT, "
        "rediss://HOST:PORT or unix:///PATH",
        "keyfence.yaml:2:38: unknown key 'ur'; did you mean url?",
    ],
    "policy: p\nupstream: {verify: maybe, connect_timeout: 5}": [
        "keyfence.yaml:2:20: 'maybe' is neither true nor false",
        "keyfence.yaml:2:44: '5' is not a duration; write a number and its unit, "
        "as 500ms, 60s, 10m, 1h or 7d",
    ],
    "policy: p\nupstream: {connect_timeout: 0s}\nlimits: {connections_per_service: {CubeProxy: 0}}": [
        "keyfence.yaml:2:29: in no time nothing connects; write a duration such as 5s",
        "keyfence.yaml:3:47: 0 admits nothing; write none for no limit",
    ],
    'policy: p\nnotify: {webhook: "https://[hooks/x"}\nfindings: "postgresql://u:SECRET@h:54a32/db"': [
        "keyfence.yaml:2:19: this is not a URL of a webhook; write https://HOST/PATH",
        "keyfence.yaml:3:11: its host and port cannot be read; write sqlite:////PATH/FILE, "
        "postgresql://USER@HOST/DATABASE, or none",
    ],
    'policy: p\nnotify: {webhook: "https://hooks:99999/x"}': [
        "keyfence.yaml:2:19: this is not a URL of a webhook; write https://HOST/PATH",
    ],
    "policy: p\nidentify: {networks: {10.0.0.1/8: CubeMaster, 10.0.0.0/33: CubeMaster}, users: {a: Nope}}": [
        "keyfence.yaml:2:35: '10.0.0.1/8' has bits behind the prefix; write 10.0.0.0/8",
        "keyfence.yaml:2:60: '10.0.0.0/33' is not a network; write it as 10.0.0.0/8 or fd00::/8",
    ],
    "policy: p\nidentify: {networks: {10.0.0.0/8: Nope}, users: {a: cubeproxy}}": [
        "keyfence.yaml:2:35: 'Nope' is not a service of the policy; known: CubeMaster, CubeProxy, unknown",
        "keyfence.yaml:2:53: 'cubeproxy' is not a service of the policy; did you mean CubeProxy?",
    ],
    "policy: p\nlimits: {request: 0, client_output: 5q, connections: 0}": [
        "keyfence.yaml:2:19: '0': input should be greater than or equal to 1",
        "keyfence.yaml:2:37: '5q' is not a size; write a number and its unit, as 512b, 16kb, 64mb or 1gb",
        "keyfence.yaml:2:54: '0': input should be greater than or equal to 1",
    ],
    "policy: p\nlimits: {request: 99999gb, connections: many}": [
        "keyfence.yaml:2:19: '99999gb': input should be less than or equal to 1099511627776",
        "keyfence.yaml:2:41: 'many' is not a whole number",
    ],
    "policy: p\nenvironment: 'two words'": [
        "keyfence.yaml:2:14: 'two words' is not a name of an environment; write up to 40 letters, digits, "
        "dots, dashes and underscores, as staging"
    ],
    "policy: p\nname_services: 1\ndecision_log: {path: x, mask_keys: on}": [
        "keyfence.yaml:2:16: '1' is neither true nor false",
        "keyfence.yaml:3:36: 'on' is neither true nor false",
    ],
    "policy: p\nwaivers: none.yaml": ["none.yaml:1:1: cannot be read: No such file or directory"],
    "- policy": ["keyfence.yaml:1:1: expected a mapping (name: value) at the top"],
    "": ["keyfence.yaml:1:1: the file is empty"],
    "policy: {": [
        "keyfence.yaml:1:10: not YAML: while parsing a flow node expected the node content, but found "
        "'<stream end>'"
    ],
}


@pytest.mark.parametrize("text", FAULTS, ids=lambda text: text.replace("\n", " ")[:60])
def test_a_fault_is_reported_with_its_place(text: str, tmp_path: Path) -> None:
    assert faults(tmp_path, text) == FAULTS[text]


LISTENER_FAULTS = (
    """
policy: p
listeners:
  - {listen: "unix:"}
  - {listen: ":1", unix_mode: rw}
  - {listen: "unix:/a", unix_mode: 9}
  - {listen: ":1", proxy_protocol: yes, trusted: [10.0.0.1/8, x]}
  - {listen: ":1", tls: {cert: a.pem, min_version: 1.1}}
""",
    [
        "4:14: 'unix:' does not name a socket; write unix:/path/to/keyfence.sock",
        "5:31: 'rw' are not permissions; write three octal digits, as 0660",
        "6:36: '9' are not permissions; write three octal digits, as 0660",
        "7:51: '10.0.0.1/8' has bits behind the prefix; write 10.0.0.0/8",
        "7:63: 'x' is not a network; write it as 10.0.0.0/8 or fd00::/8",
        "8:20: 'key' is missing",
        "8:52: '1.1' is not admitted here; expected 1.2 or 1.3",
    ],
)
LISTENER_CONTRADICTIONS = (
    """
policy: p
upstream: {url: "redis://h", cert: a.pem, server_name: x}
listeners:
  - {listen: ":1", unix_mode: 0660}
  - {listen: ":2", trusted: [10.0.0.0/8]}
  - {listen: "unix:/a", proxy_protocol: yes, trusted: [10.0.0.0/8]}
  - {listen: ":3", tls: {cert: a, key: b, require_client_cert: yes}}
""",
    [
        "3:36: a certificate and its key are both needed; add key:",
        "3:36: cert is for TLS only; write the URL as rediss://HOST:PORT",
        "3:56: server_name is for TLS only; write the URL as rediss://HOST:PORT",
        "5:31: unix_mode is for unix sockets, and :1 is not one; remove it",
        "6:29: trusted says who may send PROXY headers, and none is expected; add proxy_protocol: true",
        "7:55: trusted is for networks, and a unix socket's clients come from none; use unix_mode",
        "8:25: require_client_cert needs client_ca, the file of the authorities that vouch for clients",
    ],
)
ADDRESS_FAULTS = (
    """
policy: p
admin: "[::1]:9"
listeners:
  - {listen: "127.0.0.1:1", service: CubeMaster}
  - {listen: "127.0.0.1:1", service: CubeProxy}
  - {listen: "localhost:2"}
  - {listen: "LocalHost:2"}
  - {listen: "[0:0::1]:9"}
  - {listen: "127.0.0.1:0"}
  - {listen: "127.0.0.1:0"}
  - {listen: "unix:/run/a"}
  - {listen: "unix:/run/../run/a"}
""",
    [
        "6:14: 127.0.0.1:1 is the address of another listener too; give each its own",
        "8:14: LocalHost:2 is the address of another listener too; give each its own",
        "9:14: [0:0::1]:9 is the address of admin too; give each its own",
        "13:14: unix:/run/../run/a is the address of another listener too; give each its own",
    ],
)
IDENTITY_FAULTS = (
    f"""
policy: p
identify:
  users: {{a: CubeProxy}}
  uids: {{0: Nope}}
  certificates: {{"spiffe://x": Nope}}
  passwords:
    b: {{sha256: ["{"0" * 64}"]}}
    c: {{sha256: "{"0" * 64}", service: X}}
""",
    [
        "5:13: 'Nope' is not a service of the policy; known: CubeMaster, CubeProxy, unknown",
        "6:32: 'Nope' is not a service of the policy; known: CubeMaster, CubeProxy, unknown",
        "8:8: 'b' is not a service of the policy; known: CubeMaster, CubeProxy, unknown",
        "9:94: 'X' is not a service of the policy; known: CubeMaster, CubeProxy, unknown",
    ],
)
HELD = "3:59: '::ffff:10.0.0.0/104' holds no client, because such addresses count as IPv4; write 10.0.0.0/8"
AMBIGUOUS_IDENTITIES = (
    """
policy: p
listeners: [{listen: ":1", proxy_protocol: yes, trusted: ["::ffff:10.0.0.0/104"]}]
identify:
  uids: {0: CubeMaster, 00: CubeProxy, 1_000: CubeProxy}
  networks:
    10.0.0.1: CubeMaster
    10.0.0.1/32: CubeProxy
    2001:db8::/32: CubeMaster
    2001:0DB8::/32: CubeProxy
    "::ffff:10.0.0.0/104": CubeMaster
    fe80::1%eth0: CubeMaster
    ::/0: CubeMaster
""",
    [
        HELD,
        "5:29: '00' stands for 0; write 0",
        "5:47: '1_000' stands for 1000; write 1000",
    ],
)
AMBIGUOUS_NETWORKS = (
    AMBIGUOUS_IDENTITIES[0]
    .replace("00: CubeProxy, 1_000: CubeProxy", "")
    .replace("::ffff:10.0.0.0/104", "::/0", 1),
    [
        "8:18: '10.0.0.1/32' is the network '10.0.0.1' too; remove one",
        "10:21: '2001:0DB8::/32' is the network '2001:db8::/32' too; remove one",
        HELD.replace("3:59", "11:28"),
        "12:19: 'fe80::1%eth0' has a zone, which does not count; write it without",
    ],
)
TWO_SERVICES = (
    f"""
policy: p
identify:
  users: {{a: CubeProxy}}
  passwords: {{a: {{service: CubeProxy, sha256: "{"0" * 64}"}}}}
""",
    ["5:28: the service of 'a' is given under users too; give it in one place"],
)
# A password in place of its hash is not shown.
PASSWORD_FAULTS = (
    """
policy: p
identify:
  uids: {root: CubeProxy}
  passwords:
    a: secret
    b: {sha256: secret}
    c: {sha256: []}
""",
    [
        "4:16: 'root' is not a whole number",
        "6:8: write {sha256: [HASH]}, the password's SHA-256 hash and not the password",
        "7:17: this is not a SHA-256 hash of 64 hexadecimal digits; printf %s PASSWORD | sha256sum",
        "8:17: no hash, so nobody could log in; printf %s PASSWORD | sha256sum makes one",
    ],
)
LIMIT_FAULTS = (
    """
policy: p
limits:
  arguments: 0
  connections_per_service: -1
  connections_per_address: some
  idle: 5
  request_time: x
  handshake: 0s
""",
    [
        "4:14: '0': input should be greater than or equal to 1",
        "5:28: '-1': input should be greater than or equal to 0",
        "6:28: 'some' is not a whole number",
        "7:9: '5' is not a duration; write a number and its unit, as 500ms, 60s, 10m, 1h or 7d, or none",
        "8:17: 'x' is not a duration; write a number and its unit, as 500ms, 60s, 10m, 1h or 7d, or none",
        "9:14: '0s': input should be greater than or equal to 1",
    ],
)
UNKNOWN_IN_LIMITS = (
    """
policy: p
limits: {connections_per_service: {CubeProxi: 1, "*": 5, CubeMaster: none}}
""",
    ["3:47: 'CubeProxi' is not a service of the policy; did you mean CubeProxy?"],
)


@pytest.mark.parametrize(
    "case",
    [
        LISTENER_FAULTS,
        ADDRESS_FAULTS,
        LISTENER_CONTRADICTIONS,
        IDENTITY_FAULTS,
        AMBIGUOUS_IDENTITIES,
        AMBIGUOUS_NETWORKS,
        TWO_SERVICES,
        PASSWORD_FAULTS,
        LIMIT_FAULTS,
        UNKNOWN_IN_LIMITS,
    ],
    ids=lambda case: case[1][0][:40],
)
def test_all_faults_are_reported_at_once(case: tuple[str, list[str]], tmp_path: Path) -> None:
    assert [one.removeprefix("keyfence.yaml:") for one in faults(tmp_path, case[0])] == case[1]


WAIVER = "service: CubeProxy, rule: scope.write, owner: o, reason: r, until: 2027-06-30"
WAIVER_FAULTS = {
    f"waivers: [{{{WAIVER.replace('scope.write', 'scope.writ')}}}]": [
        "waivers.yaml:1:38: 'scope.writ' is not a rule; did you mean scope.write?"
    ],
    f"waivers: [{{{WAIVER.replace('2027-06-30', 'soon')}}}]": [
        "waivers.yaml:1:79: 'soon' is not a date; write it as 2027-06-30"
    ],
    f"waivers: [{{{WAIVER.replace('owner: o, ', '')}}}]": ["waivers.yaml:1:11: 'owner' is missing"],
    "waver: []": [
        "waivers.yaml:1:1: 'waivers' is missing",
        "waivers.yaml:1:1: unknown key 'waver'; did you mean waivers?",
    ],
}


@pytest.mark.parametrize("text", WAIVER_FAULTS, ids=lambda text: text[:60])
def test_a_fault_of_a_waiver_is_reported_with_its_place(text: str, tmp_path: Path) -> None:
    (tmp_path / "waivers.yaml").write_text(text)
    assert faults(tmp_path, "policy: p\nwaivers: waivers.yaml") == WAIVER_FAULTS[text]


def test_a_fault_of_a_flag_is_reported_at_the_command_line() -> None:
    with pytest.raises(FileError) as caught:
        load_settings("", Overrides(policy="p", service="Nobody")).check_against(SERVICES)
    assert str(caught.value) == (
        "command line:1:1: error: 'Nobody' is not a service of the policy; "
        "known: CubeMaster, CubeProxy, unknown"
    )


# -- what a file means


def test_without_a_file_the_defaults_hold() -> None:
    settings = load_settings("", Overrides(policy="p.yaml"))
    assert [(one.listen, one.service) for one in settings.listeners] == [(DEFAULT_LISTEN, "")]
    assert (settings.policy, settings.upstream, settings.admin) == ("p.yaml", None, DEFAULT_ADMIN)
    assert (settings.modes, settings.waivers, settings.decision_log) == ((), (), "")
    assert settings.upstream_verify
    assert settings.connect_timeout == 5.0
    assert (settings.limits.request, settings.limits.client_output) == (2**30, 64 * 2**20)
    assert settings.limits.of_clients() == ClientLimits()
    assert settings.limits.of_requests() == IDENTIFIED


def test_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "waivers.yaml").write_text(f"waivers:\n  - {{{WAIVER}, entry: sandbox-route}}\n")
    settings = load(
        tmp_path,
        """
policy: policies/p.yaml
waivers: waivers.yaml
upstream: {url: "rediss://u:p%2Fw@redis.example:6390/2", ca: ca.pem, verify: no, connect_timeout: 1500ms}
listeners:
  - {listen: "127.0.0.1:7101", service: CubeMaster}
  - {listen: "[::1]:0"}
identify: {users: {alice: CubeProxy}, networks: {10.1.0.0/16: CubeMaster}}
modes:
  - {rule: scope.write, service: CubeProxy, mode: enforce}
  - {mode: disabled}
admin: none
decision_log: {path: log/decisions.jsonl, mask_keys: yes}
limits: {request: 16 mb, client_output: 1gb, connections: 50}
name_services: no
environment: staging-2
workers: 3
drain: 500ms
""",
    )
    settings.check_against(SERVICES)
    assert settings.policy == str(tmp_path / "policies/p.yaml")
    assert settings.upstream == dataclasses.replace(
        parse_upstream("rediss://u:p%2Fw@redis.example:6390/2"), password="p/w", database=2
    )
    assert (settings.upstream_ca, settings.upstream_verify) == (str(tmp_path / "ca.pem"), False)
    assert settings.connect_timeout == 1.5
    assert [(one.listen, one.service) for one in settings.listeners] == [
        ("127.0.0.1:7101", "CubeMaster"),
        ("[::1]:0", ""),
    ]
    assert settings.modes == (
        ModeRule("enforce", "scope.write", "CubeProxy"),
        ModeRule("disabled"),
    )
    assert settings.admin is None
    assert (settings.decision_log, settings.mask_keys) == (str(tmp_path / "log/decisions.jsonl"), True)
    assert (settings.limits.request, settings.limits.client_output) == (16 * 2**20, 2**30)
    assert settings.limits.connections == 50
    assert not settings.name_services
    assert settings.environment == "staging-2"
    assert (settings.workers, settings.drain) == (3, 0.5)
    assert settings.waived() == [Waiver("CubeProxy", "scope.write", "sandbox-route")]
    identities = settings.identify.resolver(SERVICES)
    assert identities.identify(Evidence("", "10.1.2.3"))[0] == "CubeMaster"
    assert identities.of_user(b"alice", "unknown") == "CubeProxy"
    assert identities.identify(Evidence("", "10.2.2.3"))[0] == "unknown"


def test_every_limit_of_a_client(tmp_path: Path) -> None:
    limits = load(
        tmp_path,
        """
policy: p
limits:
  request: 16mb
  arguments: 2147483647
  request_time: 1m
  client_output: 1mb
  connections: 50
  connections_per_service: {CubeMaster: 10, CubeProxy: none, "*": 5}
  connections_per_address: 7
  handshake: 500ms
  idle: 5m
""",
    ).limits
    assert limits.of_requests() == RequestLimits(max_arguments=2**31 - 1, max_request=16 * 2**20)
    clients = limits.of_clients()
    assert clients == ClientLimits(
        50, 7, {"CubeMaster": 10, "CubeProxy": 0, "*": 5}, 2**20, handshake=0.5, idle=300.0, request_time=60.0
    )
    assert [clients.of_service(name) for name in ("CubeMaster", "CubeProxy", "unknown")] == [10, 0, 5]


def test_one_number_holds_for_each_service_and_none_means_no_limit(tmp_path: Path) -> None:
    unlimited = "connections_per_address: none, idle: none, request_time: 0"
    text = f"policy: p\nlimits: {{connections_per_service: 9, {unlimited}}}"
    clients = load(tmp_path, text).limits.of_clients()
    assert clients == ClientLimits(per_service={"*": 9})
    assert clients.of_service("unknown") == 9


def test_every_kind_of_listener_is_accepted(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
policy: p
listeners:
  - {listen: "unix:run/k.sock", unix_mode: 0660, service: CubeMaster}
  - {listen: "unix:///run/k.sock", unix_mode: "600"}
  - listen: ":7000"
    tls: {cert: tls/a.pem, key: /etc/a.key, client_ca: ca.pem, min_version: "1.3"}
    proxy_protocol: true
    trusted: [10.0.0.0/8, "fd00::/8"]
  - {listen: ":7001", tls: {cert: a, key: b, client_ca: c, require_client_cert: no}}
  - {listen: ":7002", tls: {cert: a, key: b}}
""",
    )
    first, second, third, fourth, fifth = settings.listeners
    assert (first.address.unix_path, first.unix_mode) == (f"{tmp_path}/run/k.sock", 0o660)
    assert (second.address.unix_path, second.unix_mode) == ("/run/k.sock", 0o600)
    assert third.tls
    assert (third.tls.cert, third.tls.key) == (f"{tmp_path}/tls/a.pem", "/etc/a.key")
    assert (third.tls.client_ca, third.tls.min_version) == (f"{tmp_path}/ca.pem", "1.3")
    assert (third.proxy_protocol, third.trusted) == (True, ["10.0.0.0/8", "fd00::/8"])
    required = [one.tls.requires_certificate for one in (third, fourth, fifth) if one.tls]
    assert required == [True, False, False]


def test_passwords_are_checked_against_any_of_their_hashes(tmp_path: Path) -> None:
    old, new = (hashlib.sha256(word).hexdigest() for word in (b"old", b"new"))
    text = f"""
policy: p
identify:
  users: {{app: CubeProxy}}
  passwords:
    app: {{sha256: [{old}, {new.upper()}]}}
    CubeMaster: {{sha256: {new}}}
    default: {{sha256: {old}, service: CubeProxy}}
"""
    settings = load(tmp_path, text)
    settings.check_against(SERVICES)
    who = settings.identify.resolver(SERVICES)
    assert [who.check(b"app", word) for word in (b"old", b"new", b"OLD")] == ["CubeProxy"] * 2 + [Login.WRONG]
    assert who.check(b"CubeMaster", b"new") == "CubeMaster"
    assert who.check(b"default", b"old") == "CubeProxy"
    assert who.check(b"CubeProxy", b"old") is Login.NOT_MINE


FILE = """
policy: file.yaml
upstream: redis://file
listeners: [{listen: "127.0.0.1:1", service: CubeMaster}, {listen: "127.0.0.1:2", service: CubeProxy}]
modes: [{rule: key.legacy, mode: enforce}]
admin: 127.0.0.1:3
decision_log: file.jsonl
"""


def test_flags_override_the_file(tmp_path: Path) -> None:
    flags = Overrides(
        "flag.yaml", "redis://flag", "127.0.0.1:9", "CubeProxy", "enforce", "127.0.0.1:8", "flag.jsonl"
    )
    settings = load(tmp_path, FILE, flags)
    assert settings.policy == "flag.yaml"  # relative to where keyfence was started
    assert settings.upstream
    assert settings.upstream.host == "flag"
    assert [(one.listen, one.service) for one in settings.listeners] == [("127.0.0.1:9", "CubeProxy")]
    assert settings.modes == (ModeRule("enforce"),)
    assert settings.admin == "127.0.0.1:8"
    assert settings.decision_log == "flag.jsonl"


def test_a_service_flag_holds_for_every_listener(tmp_path: Path) -> None:
    settings = load(tmp_path, FILE, Overrides(service="CubeProxy"))
    assert [one.service for one in settings.listeners] == ["CubeProxy", "CubeProxy"]
    alone = load_settings("", Overrides(policy="p", service="CubeProxy"))
    assert [(one.listen, one.service) for one in alone.listeners] == [(DEFAULT_LISTEN, "CubeProxy")]


@pytest.mark.parametrize("log", ["-", "/var/log/x.jsonl"])
def test_standard_output_and_absolute_paths_of_the_log_stay_unchanged(log: str, tmp_path: Path) -> None:
    assert load(tmp_path, f"policy: p\ndecision_log: '{log}'").decision_log == log


def test_no_admin_listener_by_flag(tmp_path: Path) -> None:
    assert load(tmp_path, FILE, Overrides(admin="none")).admin is None


def test_passthrough_needs_no_policy() -> None:
    assert load_settings("", NOTHING, needs_policy=False).policy == ""


# -- Sentinels

SENTINEL = """policy: p
upstream:
  sentinel: {hosts: ["10.0.0.1:26379", "[fd00::1]:26380"], name: main, password: "${SENTINEL}", database: 3}
  username: keyfence
  password: x
"""


def test_sentinels_name_the_primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL", "p/w")
    (tmp_path / "keyfence.yaml").write_text(SENTINEL)
    upstream = load_settings(str(tmp_path / "keyfence.yaml"), Overrides()).upstream
    assert upstream is not None
    assert (upstream.kind, upstream.host, upstream.database, upstream.shown) == (
        "tcp",
        "",
        3,
        "sentinel:main",
    )
    assert (upstream.username, upstream.password) == ("keyfence", "x")
    assert upstream.sentinels == Sentinels((("10.0.0.1", 26379), ("fd00::1", 26380)), "main", "", "p/w")
    assert "p/w" not in repr(upstream)


@pytest.mark.parametrize(
    ("upstream", "message"),
    [
        ("{hosts: [], name: main}", "keyfence.yaml:2:30: "),
        ("{hosts: ['h'], name: main}", "'h' is not an address; write HOST:PORT"),
        ("{hosts: [':26379'], name: main}", "':26379' is not the address of a Sentinel; write HOST:PORT"),
        ("{hosts: ['h:0'], name: main}", "'h:0' is not the address of a Sentinel; write HOST:PORT"),
        ("{hosts: ['h:1'], name: ''}", "keyfence.yaml:2:"),
        ("{hosts: ['h:1']}", "name"),
        ("{hosts: ['h:1'], name: main}, url: 'redis://h'", "the URL names the Redis, and so do Sentinels"),
        (
            "{hosts: ['h:1'], name: main}, server_name: x",
            "server_name is for TLS only; add tls: true to sentinel",
        ),
    ],
)
def test_a_fault_about_sentinels_is_told_with_its_place(tmp_path: Path, upstream: str, message: str) -> None:
    (tmp_path / "keyfence.yaml").write_text(f"policy: p\nupstream: {{sentinel: {upstream}}}\n")
    with pytest.raises(FileError) as caught:
        load_settings(str(tmp_path / "keyfence.yaml"), Overrides())
    assert message in str(caught.value)


# -- credentials that change

CREDENTIALS = """policy: p
upstream:
  url: redis://h
  username: keyfence
  credentials:
    {source}
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("file: secrets/redis", FromFile("{folder}/secrets/redis", username="keyfence")),
        ("env: REDIS_LOGIN", FromEnvironment("REDIS_LOGIN", username="keyfence")),
        ("command: [vault, read, x]", FromCommand(("vault", "read", "x"), username="keyfence")),
        ("command: [./token]", FromCommand(("{folder}/token",), username="keyfence")),
        ("command: [/bin/token]", FromCommand(("/bin/token",), username="keyfence")),
    ],
)
def test_the_upstreams_credentials_have_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: object
) -> None:
    monkeypatch.setenv("REDIS_LOGIN", "secret")
    (tmp_path / "keyfence.yaml").write_text(CREDENTIALS.format(source=source))
    settings = load_settings(str(tmp_path / "keyfence.yaml"), Overrides())
    assert settings.upstream is not None
    found = settings.upstream.credentials
    assert found is not None
    assert repr(found).partition(", where=")[0] == (
        repr(expected).partition(", where=")[0].replace("{folder}", str(tmp_path))
    )
    assert found.where == f"{tmp_path}/keyfence.yaml:6: {source.partition(':')[0]}"
    assert settings.upstream.has_login
    assert settings.upstream.password == ""
    assert settings.secret_files == ((f"{tmp_path}/secrets/redis",) if "file" in source else ())


def test_the_user_of_credentials_may_stand_in_the_url(tmp_path: Path) -> None:
    (tmp_path / "keyfence.yaml").write_text(
        "policy: p\nupstream: {url: 'redis://someone@h', credentials: {file: f}}\n"
    )
    settings = load_settings(str(tmp_path / "keyfence.yaml"), Overrides())
    assert settings.upstream is not None
    assert settings.upstream.credentials == FromFile(f"{tmp_path}/f", username="someone")


@pytest.mark.parametrize(
    ("upstream", "message"),
    [
        ("{url: 'redis://h', credentials: {}}", "name one source of credentials: file, command, env"),
        ("{url: 'redis://h', credentials: {file: a, env: B}}", "name one source of credentials"),
        ("{url: 'redis://h', credentials: {command: []}}", "name one source of credentials"),
        (
            "{url: 'redis://h', credentials: {env: NOT_THERE}}",
            "error: the environment has no NOT_THERE",
        ),
        ("{url: 'redis://h', password: p, credentials: {file: a}}", "the upstream's password is given too"),
        ("{url: 'redis://u:p@h', credentials: {file: a}}", "the upstream's password is given too"),
        ("{credentials: {file: a}}", "credentials need a url; name the Redis that they are for"),
    ],
)
def test_a_fault_about_credentials_is_told_with_its_place(
    tmp_path: Path, upstream: str, message: str
) -> None:
    (tmp_path / "keyfence.yaml").write_text(f"policy: p\nupstream: {upstream}\n")
    with pytest.raises(FileError) as caught:
        load_settings(str(tmp_path / "keyfence.yaml"), Overrides())
    assert message in str(caught.value)


# -- upstreams


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", ("tcp", "h", 6379, "", "", "", 0)),
        ("redis://h:6390/3", ("tcp", "h", 6390, "", "", "", 3)),
        ("redis://:p%40w@[::1]:6390/", ("tcp", "::1", 6390, "", "", "p@w", 0)),
        ("rediss://u:p:q@h", ("tls", "h", 6379, "", "u", "p:q", 0)),
        ("unix:///run/redis.sock", ("unix", "", 6379, "/run/redis.sock", "", "", 0)),
        ("unix://u:p@/run/r%20s.sock?db=4", ("unix", "", 6379, "/run/r s.sock", "u", "p", 4)),
    ],
)
def test_an_upstream(url: str, expected: tuple[object, ...]) -> None:
    found = parse_upstream(url)
    assert (
        found.kind,
        found.host,
        found.port,
        found.path,
        found.username,
        found.password,
        found.database,
    ) == (expected)


NO_UPSTREAM = {
    "h:6379": "'h:6379' is not an upstream URL; write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH",
    "u:secret@h:5": "'u:***@h:5' is not an upstream URL; write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH",
    "http://h": "'http://h' is not an upstream URL; write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH",
    "redis://": "'redis://' names no host; write redis://HOST:PORT",
    "redis://:secret@": "'redis://***@' names no host; write redis://HOST:PORT",
    "redis://a..b:6379": "'redis://a..b:6379' names no host; write redis://HOST:PORT",
    "redis://h:99999": "the upstream's port is not a number from 1 to 65535: 'redis://h:99999'",
    "redis://h:0": "the upstream's port is not a number from 1 to 65535: 'redis://h:0'",
    "redis://h:x": "the upstream's port is not a number from 1 to 65535: 'redis://h:x'",
    "redis://h/zero": "'redis://h/zero': 'zero' is not a database number",
    "redis://h/1/2": "'redis://h/1/2': '1/2' is not a database number",
    "redis://h/-1": "'redis://h/-1': '-1' is not a database number",
    "redis://u:sec/ret@h:5": "'redis://u:***@h:5': write / ? # of a user or password as %2F %3F %23",
    "redis://u:1#secret@h": "'redis://u:***@h': write / ? # of a user or password as %2F %3F %23",
    "redis://u:sec?ret@h:5": "'redis://u:***@h:5': write / ? # of a user or password as %2F %3F %23",
    "redis://h?password=secret": "'redis://h?…': there is no parameter 'password' here",
    "redis://u:secret@[::1:5": "'redis://u:***@[::1:5' is not a URL",
    "unix://:sec/?secret@h": "'unix://***@h': write / ? # of a user or password as %2F %3F %23",
    "unix:///s?db=secret@h": "'unix://***@h': write / ? # of a user or password as %2F %3F %23",
    "unix://tmp/redis.sock": "'unix://tmp/redis.sock' does not name a socket; write unix:///path/to/redis.sock",
    "unix:": "'unix:' does not name a socket; write unix:///path/to/redis.sock",
    "unix:///s?db=x": "'unix:///s?…': 'x' is not a database number",
    "unix:///s?password=secret": "'unix:///s?…': there is no parameter 'password' here",
}


@pytest.mark.parametrize("url", NO_UPSTREAM)
def test_no_upstream(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_upstream(url)
    assert str(caught.value) == NO_UPSTREAM[url]


@settings(max_examples=1000, deadline=None)
@given(
    st.sampled_from(["redis://", "rediss://", "unix://", "http://", "", "redis:/", "://"]),
    st.sampled_from(["", "user"]),
    st.text("/?#@:%[]x=&. \\\n", max_size=6),
    st.sampled_from(["h", "h:1", "h:x", "[::1]:5", "[::1", "/run/s", "", "h/3", "h?db=2", "h?x=1"]),
)
def test_no_message_holds_a_password(scheme: str, user: str, odd: str, rest: str) -> None:
    url = f"{scheme}{user}:SECRET{odd}SECRET@{rest}"
    assert "SECRET" not in without_password(url)
    shown = outcome(url)
    assert "SECRET" not in shown
    assert "\n" not in shown


def outcome(url: str) -> str:
    """Every text about an upstream that a user may see."""
    try:
        return parse_upstream(url).shown
    except ValueError as exc:
        return str(exc)


@given(st.text())
def test_any_text_is_an_address_and_an_upstream_or_a_value_error(text: str) -> None:
    outcome(text)
    with contextlib.suppress(ValueError):
        parse_listen(text)


# -- the documentation

DOCS = (PROJECT / "docs" / "configuration.md").read_text()


def settings_of(model: type[BaseModel]) -> set[str]:
    """The names of a model's settings, nested ones included."""
    names: set[str] = set()
    for name, field in model.model_fields.items():
        names.add(field.alias or name)
        inner = _model_in(field.annotation)
        names |= settings_of(inner) if inner is not None else set()
    return names


CLUSTER = """policy: p
upstream:
  cluster: ["10.0.0.1:6379", "[fd00::1]:6379"]
  announce: {host: keyfence.example, ports: 7200-7299, nodes: {"10.0.0.1:6379": 7300}}
listeners: [{listen: "0.0.0.0:6380"}]
"""


def test_nodes_of_a_cluster_and_the_addresses_that_stand_for_them(tmp_path: Path) -> None:
    found = load(tmp_path, CLUSTER)
    assert found.upstream is not None
    assert found.announce is not None
    assert found.upstream.cluster == (("10.0.0.1", 6379), ("fd00::1", 6379))
    assert (found.upstream.kind, found.upstream.shown) == ("tcp", "cluster:10.0.0.1:6379")
    assert (found.announce.host, found.announce.range) == ("keyfence.example", range(7200, 7300))
    with_tls = CLUSTER.replace("cluster: [", "cluster: {tls: yes, hosts: [").replace('6379"]', '6379"]}')
    upstream = load(tmp_path, with_tls).upstream
    assert upstream is not None
    assert upstream.kind == "tls"


def test_a_cluster_behind_one_address_may_have_several_listeners(tmp_path: Path) -> None:
    single = CLUSTER.replace("  announce: {", "  expose: single\n  #")
    found = load(tmp_path, single.replace("}]", '}, {listen: "unix:/tmp/k.sock"}]'))
    assert found.expose == "single"
    assert found.announce is None
    assert load(tmp_path, CLUSTER).expose is None


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ("  announce: {", "  #", "3:12: clients would learn the nodes' own addresses; write announce:"),
        (
            "  cluster: [",
            "  #",
            "announce is for a cluster, in place of its nodes' addresses; add",
        ),
        (
            "upstream:",
            "upstream:\n  url: redis://r",
            "url names a Redis too; keyfence has one",
        ),
        (
            "keyfence.example",
            "0.0.0.0",
            "4:20: '0.0.0.0' is not the address of one machine; write the IP address",
        ),
        ("7200-7299", "7299-7200", "4:45: '7299-7200' ends before it begins; write 7200-7299"),
        ("7200-7299", "7200-72990", "4:45: '7200-72990' goes beyond the last port, 65535"),
        ("7200-7299", "7200", "4:45: '7200' is not a range of ports; write FIRST-LAST"),
        ("7200-7299", "6300-6399", "4:45: port 6380 is that of a listener too; give it another one"),
        (": 7300}", ": 0}", "4:81: '0': input should be"),
        ('{"10.0.0.1:6379"', '{"10.0.0.2:1": 7300, "10.0.0.1:6379"', "port 7300 is given to two nodes"),
        ('"0.0.0.0:6380"', '"unix:/tmp/k.sock"', "5:12: a cluster needs one listener, of HOST:PORT"),
        (
            '{listen: "0.0.0.0:6380"}',
            '{listen: ":1"}, {listen: ":2"}',
            "with announce, one listener stands for all nodes: remove this one",
        ),
        ("  announce: {", "  expose: double\n  #", "4:11: 'double' is not admitted here; expected single"),
        (
            "  announce: {",
            "  expose: single\n  announce: {",
            "clients get one address of keyfence or one",
        ),
        (
            "  announce: {",
            "  expose: single\n  mode: dedicated\n  #",
            "a cluster behind one address needs",
        ),
        (
            "  announce: {",
            '  expose: single\n  replicas: ["r:1"]\n  #',
            "names the replicas of a cluster",
        ),
    ],
)
def test_a_fault_about_a_cluster_is_told_with_its_place(
    tmp_path: Path, was: str, now: str, expected: str
) -> None:
    found = faults(tmp_path, CLUSTER.replace(was, now, 1))
    assert expected in "\n".join(found)


@pytest.mark.parametrize(
    ("listener", "identify", "expected"),
    [
        ("{listen: ':0', service: CubeProxy, tls: {cert: c, key: k, client_ca: a}}", "{}", "CubeProxy"),
        ("{listen: ':0', tls: {cert: c, key: k, client_ca: a}}", "{}", "by certificate"),
        ("{listen: ':0', tls: {cert: c, key: k}}", "{}", "unknown"),
        (
            "{listen: ':0'}",
            "{users: {a: CubeProxy}, networks: {10.0.0.0/8: CubeProxy}}",
            "by user or network",
        ),
        ("{listen: 'unix:s'}", "{uids: {7: CubeProxy}, networks: {10.0.0.0/8: CubeProxy}}", "by Unix user"),
        ("{listen: ':0'}", "{uids: {7: CubeProxy}}", "unknown"),
    ],
)
def test_a_listener_says_whose_it_is(tmp_path: Path, listener: str, identify: str, expected: str) -> None:
    found = load(tmp_path, f"policy: p\nlisteners: [{listener}]\nidentify: {identify}\n")
    assert found.whose(found.listeners[0]) == expected


def test_every_setting_is_documented() -> None:
    told = set(re.findall(r"`([a-z0-9_]+)`", DOCS)) | set(re.findall(r"\{(sha256): ", DOCS))
    elsewhere = {"mode", "modes", "rule"}  # of modes, which policy.md describes
    assert settings_of(ConfigModel) - told - elsewhere == set()


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL))
def test_every_example_of_the_documentation_is_right(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    monkeypatch.setattr(checks, "missing", lambda _source: "")  # the library of each cloud is installed
    settings = load(tmp_path, f"policy: p\n{example}")
    settings.check_against((*SERVICES, "CubeAPI", "cube-proxy-sidecar"))


def test_the_documented_defaults_of_limits_hold() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", DOCS.partition("## limits")[2], re.MULTILINE))
    written = {name: rows[name].strip("`") for name in LimitsModel.model_fields}
    for name, value in written.items():
        given = LimitsModel.model_validate({name: value})
        if name == "connections_per_service":
            assert given.of_clients().of_service("any") == LimitsModel().of_clients().of_service("any")
        else:
            assert getattr(given, name) == getattr(LimitsModel(), name), name
