from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.config.news import NewsModel, SmtpModel
from keyfence.config.settings import Settings
from keyfence.policy.diagnostics import FileError
from tests.config.test_models import faults, load

BEGIN = "policy: p\nnews:\n"
HOOK = "https://hooks.example/secret-of-a-url"
SMTP = "smtp: {host: mail.example, from: keyfence@host.example}"


def news(tmp_path: Path, *lines: str) -> NewsModel:
    found = load(tmp_path, BEGIN + "".join(f"  {line}\n" for line in lines)).news
    assert found is not None
    return found


def test_little_is_needed(tmp_path: Path) -> None:
    one = news(tmp_path, "every: day", f"to: {{webhook: {HOOK}}}")
    assert (one.at, one.zone, one.its_weekday, one.page, one.even_if_quiet) == (
        "08:00",
        "UTC",
        None,
        "",
        False,
    )
    assert [(target.webhook, target.as_) for target in one.to] == [(HOOK, None)]
    assert load(tmp_path, "policy: p\n").news is None


def test_everything_can_be_said(tmp_path: Path) -> None:
    pytest.importorskip("aiosmtplib")
    one = news(
        tmp_path,
        "every: week",
        "weekday: friday",
        'at: "16:30"',
        "zone: Europe/Berlin",
        f"to: [{{webhook: {HOOK}, as: slack}}, {{email: ops@host.example}}]",
        "owners:",
        f'    "#shop": {{webhook: {HOOK}, as: teams}}',
        "    web-team: [{email: [a@host.example, b@host.example]}]",
        "smtp: {host: mail.example, tls: tls, ca: ca.pem, username: u, password: p, from: a@host.example}",
        "page: https://keyfence.example",
        "even_if_quiet: yes",
    )
    assert (one.its_weekday, one.at, one.zone) == (4, "16:30", "Europe/Berlin")
    assert [target.as_ for target in one.owners["#shop"]] == ["teams"]
    assert [target.email for target in one.owners["web-team"]] == [["a@host.example", "b@host.example"]]
    about = {"host": "mail.example", "tls": "tls", "ca": str(tmp_path / "ca.pem"), "from": "a@host.example"}
    assert one.smtp == SmtpModel.model_validate({**about, "username": "u", "password": "p"})
    assert one.smtp.its_port == 465


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("every: hour", "3:10: 'hour' is not admitted here; expected day or week"),
        ('every: day\n  at: "8:00"', "4:7: '8:00' is not a time of day; write HH:MM, as 08:00"),
        (
            "every: day\n  weekday: monday",
            "4:12: a digest of each day has no weekday; write every: week, or remove it",
        ),
        (
            "every: day\n  zone: Berlin",
            "4:9: 'Berlin' is not a time zone that this machine knows; write UTC, or a name as "
            "Europe/Berlin (Debian's package tzdata has them)",
        ),
        (
            "every: day\n  zone: ../../../etc/passwd",
            "4:9: '../../../etc/passwd' is not a time zone that this machine knows; write UTC, or a name as "
            "Europe/Berlin (Debian's package tzdata has them)",
        ),
        (
            "every: day\n  page: keyfence.example",
            "4:9: 'keyfence.example' is not the address of a page; write it as https://HOST/PATH",
        ),
        (
            "every: day\n  smtp: {host: mail.example, from: keyfence}",
            "4:36: 'keyfence' is not an address of e-mail; write NAME@HOST",
        ),
        (
            f"every: day\n  {SMTP}",
            "4:16: no target is an address of e-mail; add one, or remove smtp",
        ),
        (
            f'every: day\n  owners: {{"": {{webhook: "{HOOK}"}}}}',
            "4:11: an owner needs a name; what has no owner goes to the targets of to",
        ),
    ],
)
def test_a_fault_names_its_place_its_value_and_the_remedy(tmp_path: Path, line: str, fault: str) -> None:
    found = faults(tmp_path, f"{BEGIN}  {line}\n  to: {{webhook: {HOOK}}}\n")
    assert found == [f"keyfence.yaml:{fault}"]
    assert "secret-of-a-url" not in "".join(found)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("{}", "a target is either webhook: URL or email: ADDRESS; write one of the two"),
        (
            f"{{webhook: {HOOK}, email: a@b}}",
            "a target is either webhook: URL or email: ADDRESS; write one of the two",
        ),
        ("{email: a@b, as: slack}", "as is for a webhook, and e-mail has one form; remove it"),
        ("{webhook: secret-of-a-url}", "this is not a URL of a webhook; write https://HOST/PATH"),
        ('{email: "a@b, c@d"}', "'a@b, c@d' is not an address of e-mail; write NAME@HOST"),
        ('{email: "a@b\\r\\nBcc: c@d"}', "'a@b\\r\\nBcc: c@d' is not an address of e-mail; write NAME@HOST"),
        (
            f"{{webhook: {HOOK}, as: discord}}",
            "'discord' is not admitted here; expected json, slack or teams",
        ),
        (f"{{webhok: {HOOK}}}", "unknown key 'webhok'; did you mean webhook?"),
        (
            "{email: a@b.example}",
            "no mail server is named that sends this; add smtp: {host: HOST, from: ADDRESS} to news",
        ),
    ],
)
def test_a_target_is_one_place(tmp_path: Path, target: str, fault: str) -> None:
    found = faults(tmp_path, f"{BEGIN}  every: day\n  to: [{target}]\n")
    assert fault in [one.split(": ", 1)[1] for one in found]
    assert all(one.startswith("keyfence.yaml:4:") for one in found)
    assert "secret-of-a-url" not in "".join(found)


@pytest.mark.parametrize(
    ("smtp", "fault"),
    [
        ("username: u", "a login needs both; add password: beside it"),
        ("password: secret-of-smtp", "a login needs both; add username: beside it"),
        (
            "username: u, password: secret-of-smtp, tls: none",
            "the password would travel unencrypted; write tls: starttls, or remove the login",
        ),
        ("ca: ca.pem, tls: none", "ca is for TLS only; write tls: starttls, or remove it"),
        ('host: "a b"', "'a b' is not a host; write its name or address, and port: beside it"),
        ("port: 70000", "'70000': input should be less than or equal to 65535"),
    ],
)
def test_a_mail_server_is_whole(tmp_path: Path, smtp: str, fault: str) -> None:
    pytest.importorskip("aiosmtplib")
    host = "" if "host" in smtp else "host: mail.example, "
    lines = f"  every: day\n  to: {{email: a@b.example}}\n  smtp: {{{host}from: a@b.example, {smtp}}}\n"
    found = faults(tmp_path, BEGIN + lines)
    assert [one.split(": ", 1)[1] for one in found] == [fault]
    assert "secret-of-smtp" not in "".join(found)


def test_news_need_a_store(tmp_path: Path) -> None:
    found = faults(tmp_path, f"{BEGIN}  every: day\n  to: {{webhook: {HOOK}}}\nfindings: none\n")
    assert found == [
        "keyfence.yaml:3:3: news tells of findings, and there is no store of findings; "
        "remove it, or name a store"
    ]


@pytest.mark.parametrize(
    "place",
    [
        "to: {{webhook: {0}}}",
        "to: [{{webhook: {0}}}]",
        "to: {{webhook: https://x.example/}}\n  owners: {{a: {{webhook: {0}}}}}",
        "to: {{webhook: https://x.example/}}\n  owners: {{a: [{{webhook: {0}}}]}}",
    ],
)
@pytest.mark.parametrize("reference", ["file:url", "${NEWS_URL}"])
def test_a_webhook_may_stand_elsewhere(
    tmp_path: Path, place: str, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEWS_URL", HOOK)
    (tmp_path / "url").write_text(f"{HOOK}\n")
    written = place.format(f'"{reference}"')
    settings = load(tmp_path, f"{BEGIN}  every: day\n  {written}\n")
    assert HOOK in urls(settings)
    assert (str(tmp_path / "url") in settings.secret_files) is reference.startswith("file:")


def test_a_notification_may_stand_elsewhere_too(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(HOOK)
    settings = load(tmp_path, "policy: p\nnotify: {webhook: file:url}\n")
    assert settings.notify is not None
    assert settings.notify.webhook == HOOK


def test_what_stands_elsewhere_and_is_wrong_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("secret-of-a-url")
    with pytest.raises(FileError) as caught:
        load(tmp_path, f"{BEGIN}  every: day\n  to: [{{webhook: file:url}}]\n")
    assert "secret-of-a-url" not in str(caught.value)


def urls(settings: Settings) -> set[str]:
    assert settings.news is not None
    return {one.webhook for _, one in settings.news.targets()}
