"""Listeners that answer as Sentinels."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.policy.diagnostics import FileError

DATA = '{listen: "10.0.0.9:6380", service: app}'


def load(folder: Path, *listeners: str, more: str = "", flags: Overrides | None = None) -> Settings:
    file = folder / "k.yaml"
    lines = "".join(f"  - {one}\n" for one in listeners)
    file.write_text(f"policy: p\nlisteners:\n{lines}{more}")
    return load_settings(str(file), flags or Overrides())


def faults(folder: Path, *listeners: str) -> list[str]:
    with pytest.raises(FileError) as caught:
        load(folder, *listeners)
    return [
        str(one).removeprefix(f"{folder}/k.yaml:").replace(": error", "") for one in caught.value.diagnostics
    ]


def test_the_name_of_the_upstreams_primary_is_the_default(tmp_path: Path) -> None:
    upstream = 'upstream: {sentinel: {hosts: ["h:1"], name: main}}'
    found = load(tmp_path, DATA, '{listen: ":26379", sentinel: true}', more=upstream)
    assert [one.name for one in found.listeners[1].primaries] == ["main"]
    assert found.listeners[0].primaries == []
    assert found.serving == [found.listeners[0]]
    assert found.named_by_default(found.listeners[1]) is found.listeners[0]
    assert found.whose(found.listeners[1]) == "Sentinel for main"
    flags = Overrides(upstream="redis://elsewhere")
    again = load(tmp_path, DATA, '{listen: ":26379", sentinel: yes}', more=upstream, flags=flags)
    assert [one.name for one in again.listeners[1].primaries] == ["main"]


def test_a_listener_may_name_several_primaries(tmp_path: Path) -> None:
    several = '[{name: a}, {name: b, address: "redis.internal:7000", others: "10.0.0.2:26379"}]'
    found = load(tmp_path, DATA, f'{{listen: ":26379", sentinel: {several}}}').listeners[1]
    assert [(one.name, one.address, one.others) for one in found.primaries] == [
        ("a", "", []),
        ("b", "redis.internal:7000", ["10.0.0.2:26379"]),
    ]


def test_a_listener_is_an_ordinary_one_with_no(tmp_path: Path) -> None:
    found = load(tmp_path, '{listen: ":1", sentinel: no}').listeners[0]
    assert found.primaries == []


def test_the_listener_of_the_same_service_is_the_default(tmp_path: Path) -> None:
    web = '{listen: "10.0.0.9:6381", service: web}'
    sentinel = '{listen: ":26379", service: web, sentinel: {name: m}}'
    found = load(tmp_path, DATA, web, sentinel)
    assert found.named_by_default(found.listeners[2]) is found.listeners[1]
    alone = load(tmp_path, DATA, sentinel)  # clients of all services use this one
    assert alone.named_by_default(alone.listeners[1]) is alone.listeners[0]


def test_a_listen_flag_replaces_all_listeners(tmp_path: Path) -> None:
    sentinel = '{listen: ":26379", sentinel: {name: m}}'
    found = load(tmp_path, DATA, sentinel, flags=Overrides(listen="127.0.0.1:9"))
    assert [one.listen for one in found.listeners] == ["127.0.0.1:9"]


WRITE = "write sentinel: {address: HOST:PORT}"
ROOM = '{listen: ":26379", sentinel: %s}'


@pytest.mark.parametrize("listen", ["0.0.0.0:6380", "[::]:6380", ":6380", "unix:/run/k.sock"])
def test_an_address_that_clients_cannot_reach_is_no_default(tmp_path: Path, listen: str) -> None:
    data = f'{{listen: "{listen}", service: app}}'
    expected = f"4:34: clients cannot be told to connect to {listen}; {WRITE}"
    assert faults(tmp_path, data, ROOM % "{name: m}") == [expected]
    load(tmp_path, data, ROOM % '{name: m, address: "10.0.0.9:6380"}')


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_loopback_address_is_for_clients_of_the_same_machine(tmp_path: Path, host: str) -> None:
    data = f'{{listen: "{host}:6380", service: app}}'
    expected = f"4:34: clients of other machines cannot connect to {host}:6380; {WRITE}"
    assert faults(tmp_path, data, ROOM % "{name: m}") == [expected]
    load(tmp_path, data, ROOM % f'{{name: m, address: "{host}:6380"}}')
    for listen in ("127.0.0.1:26379", "unix:/run/sentinel.sock"):
        load(tmp_path, data, f'{{listen: "{listen}", sentinel: {{name: m}}}}')


def test_faults_say_what_to_write(tmp_path: Path) -> None:
    no_name = "no name that clients ask for; write sentinel: {name: NAME}, as their settings have it"
    unreachable = "; write HOST:PORT, as they reach it"
    for written, expected in {
        "true": f"34: {no_name}",
        "{}": f"34: {no_name}",
        "[{name: a}, {}]": f"46: {no_name}",
        "[{name: a}, {name: a}]": "53: 'a' is named twice; remove one",
        "{name: a, address: ':1'}": f"53: clients cannot connect to ':1'{unreachable}",
        "{name: a, address: 'h:0'}": f"53: clients cannot connect to 'h:0'{unreachable}",
        "{name: a, others: ['0.0.0.0:1']}": f"53: clients cannot connect to '0.0.0.0:1'{unreachable}",
        "maybe": "34: write true, or {name: NAME, address: HOST:PORT}, or a list of these",
        "[]": "34: write true, or {name: NAME, address: HOST:PORT}, or a list of these",
        "{names: a}": "35: unknown key 'names'; did you mean name?",
    }.items():
        assert faults(tmp_path, DATA, ROOM % written) == [f"4:{expected}"]


def test_keyfence_must_know_which_listener_is_meant(tmp_path: Path) -> None:
    web = '{listen: "10.0.0.9:6381", service: web}'
    expected = f"5:34: keyfence does not know which listener's address to name; {WRITE}"
    assert faults(tmp_path, DATA, web, ROOM % "{name: m}") == [expected]


def test_some_listener_serves_redis_clients(tmp_path: Path) -> None:
    expected = "3:3: every listener answers as a Sentinel; add one without sentinel, for Redis' clients"
    assert faults(tmp_path, ROOM % '{name: m, address: "h:1"}') == [expected]
