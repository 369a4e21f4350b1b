"""The setting `policy`: a path or a URL, and what belongs to a URL."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.policy.diagnostics import FileError

URL = "https://policies.example/shop.yaml?sig=SECRET"
KEY = "ed25519:" + "A" * 43 + "="
SIGNED = f"name: shop, trust: '{KEY}'"


def load(folder: Path, text: str, **flags: str) -> Settings:
    path = folder / "keyfence.yaml"
    path.write_text(text)
    return load_settings(str(path), Overrides(**flags))  # type: ignore[arg-type]


def test_a_path_is_written_alone_or_in_a_mapping(tmp_path: Path) -> None:
    for text in ("policy: shop.yaml\n", "policy: {path: shop.yaml}\n"):
        found = load(tmp_path, text)
        assert (found.policy, found.policy_server) == (str(tmp_path / "shop.yaml"), None)


def test_a_url_has_a_copy_on_disk_a_login_and_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("POLICY_PASSWORD", "SECRET")
    (tmp_path / "token").write_text("SECRET\n")
    found = load(
        tmp_path,
        f"policy: {{url: '{URL}', credentials: 'file:token', ca: ca.pem, stale_after: 10m, then: refuse}}\n",
    )
    server = found.policy_server
    assert found.policy == str(tmp_path / "state" / "policy.yaml")
    assert server is not None
    assert (server.poll, server.stale_after, server.then) == (30.0, 600.0, "refuse")
    assert (server.ca, server.token_file) == (str(tmp_path / "ca.pem"), str(tmp_path / "token"))
    assert server.shown == "https://policies.example/shop.yaml"
    assert "SECRET" not in repr(server)
    login = "credentials: {username: me, password: '${POLICY_PASSWORD}'}"
    server = load(tmp_path, f"policy: {{url: '{URL}', {login}}}\n").policy_server
    assert server is not None
    assert (server.username, server.password, server.token_file) == ("me", "SECRET", "")


def test_without_systemd_each_configuration_has_a_copy_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    copies = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        copies.add(load(tmp_path / name, f"policy: {{url: '{URL}'}}\n").policy)
    assert len(copies) == 2
    assert {Path(one).parent for one in copies} == {tmp_path / "state" / "keyfence"}


def test_the_command_line_wins_over_a_url(tmp_path: Path) -> None:
    found = load(tmp_path, f"policy: {{url: '{URL}'}}\n", policy="other.yaml")
    assert (found.policy, found.policy_server) == ("other.yaml", None)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (f"{{url: '{URL}', path: shop.yaml}}", "the policy has a path too; give one of them"),
        ("{path: shop.yaml, poll: 10s}", "poll is for a policy with a url; remove it"),
        ("{path: shop.yaml, stale_after: 10m, then: keep}", "stale_after is for a policy with a url"),
        (f"{{url: '{URL}', then: refuse}}", "add stale_after"),
        (f"{{url: '{URL}', stale_after: 1m}}", "at least three times as long as poll (30 s)"),
        (f"{{url: '{URL}', poll: 10ms}}", "10ms"),
        (
            f"{{url: '{URL}', credentials: {{username: me}}}}",
            "write either a token, or username and password",
        ),
        (f"{{url: '{URL}', then: stop}}", "expected keep, observe or refuse"),
        ("{url: 'http://policies.example/a?sig=SECRET'}", "write https://, or name this machine"),
        ("{url: 'https://me:SECRET@policies.example/a'}", "a login goes under credentials"),
        ("{url: 'ftp://policies.example/SECRET'}", "write https://HOST/PATH"),
        ("{url: 'https:///SECRET'}", "write https://HOST/PATH"),
        ("{url: 'https://policies.example:port/SECRET'}", "write https://HOST/PATH"),
        ("{url: 'https://policies.example/SECRET value'}", "neither blanks nor letters beyond ASCII"),
        ("{}", "no policy; name one with policy: or --policy"),
        (f"{{path: shop.yaml, trust: '{KEY}'}}", "trust needs name"),
        ("{path: shop.yaml, name: shop}", "name is for a signed policy; add trust"),
        (f"{{path: shop.yaml, name: 'a b', trust: '{KEY}'}}", "a name has 1 to 64 letters"),
        ("{path: shop.yaml, name: shop, trust: 'ed25519:SECRET'}", "this is not a public key"),
        ("{path: shop.yaml, name: shop, trust: nowhere}", "nowhere cannot be read"),
        (f"{{redis: 'redis://:SECRET@store', path: shop.yaml, {SIGNED}}}", "the policy has a path too"),
        (f"{{redis: 'redis://:SECRET@store', url: '{URL}', {SIGNED}}}", "the policy has a url too"),
        ("{redis: 'redis://:SECRET@store'}", "a policy in Redis must be signed"),
        (f"{{redis: 'http://:SECRET@store', {SIGNED}}}", "this is not the URL of a Redis"),
        (f"{{redis: 'redis://store', {SIGNED}, credentials: SECRET}}", "a login at Redis has a password"),
        (
            f"{{redis: 'redis://:SECRET@store', {SIGNED}, credentials: {{password: x}}}}",
            "the URL has a password too; give it in one place",
        ),
    ],
)
def test_a_setting_that_is_wrong_or_has_no_effect_is_a_fault(said: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        load(tmp_path, f"policy: {said}\n")
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/keyfence.yaml:1:")
    assert why in text
    assert "SECRET" not in caught.value.diagnostics[0].message


def test_a_signed_policy_has_a_name_and_keys_from_words_and_files(tmp_path: Path) -> None:
    other = KEY.replace("AA=", "BA=")
    (tmp_path / "keys").write_text(f"# two\n{KEY} ada\n{other}\n")
    found = load(tmp_path, f"policy: {{path: shop.yaml, name: shop, trust: [keys, '{KEY}']}}\n").policy_trust
    assert found is not None
    assert (found.name, [one.text for one in found.keys]) == ("shop", [KEY, other])
    assert load(tmp_path, "policy: shop.yaml\n").policy_trust is None
    flags = load(tmp_path, f"policy: {{path: shop.yaml, {SIGNED}}}\n", policy="other.yaml")
    assert flags.policy_trust is None, "the command line replaces the whole setting"


def test_a_redis_has_its_login_in_the_url_or_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("STORE_PASSWORD", "SEC/RET")
    for said in ("'redis://:${STORE_PASSWORD}@store/team'", "'file:url'"):
        (tmp_path / "url").write_text("redis://:SEC%2FRET@store/team\n")
        found = load(tmp_path, f"policy: {{redis: {said}, {SIGNED}}}\n")
        server = found.policy_server
        assert server is not None
        assert (server.is_redis, server.shown) == (True, "redis://store:6379/team/shop")
        assert "SEC" not in repr(found.policy_server)
        assert found.policy == str(tmp_path / "state" / "policy.yaml")
    said = "redis: 'rediss://store', credentials: {password: '${STORE_PASSWORD}'}"
    server = load(tmp_path, f"policy: {{{said}, {SIGNED}}}\n").policy_server
    assert server is not None
    assert (server.username, server.password) == ("", "SEC/RET")
    renewed = dataclasses.replace(server, url="rediss://:other@store", password="")
    assert renewed.id == server.id, "a new password leads to no other store"
