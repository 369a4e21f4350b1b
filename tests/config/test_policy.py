"""The setting `policy`: a path or a URL, and what belongs to a URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.policy.diagnostics import FileError

URL = "https://policies.example/shop.yaml?sig=SECRET"


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
    ],
)
def test_a_setting_that_is_wrong_or_has_no_effect_is_a_fault(said: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        load(tmp_path, f"policy: {said}\n")
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/keyfence.yaml:1:")
    assert why in text
    assert "SECRET" not in caught.value.diagnostics[0].message
