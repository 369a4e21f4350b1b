"""Credentials as files and commands write them."""

from __future__ import annotations

import pytest

from keyfence.upstream.credentials.model import Credentials, NoCredentials
from keyfence.upstream.credentials.text import MAX_BYTES, read_text

NOW = 4_000_000_000.0  # later than the clock of any machine that runs this


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("secret", Credentials("keyfence", "secret")),
        ("secret\n", Credentials("keyfence", "secret")),
        ("secret\r\n", Credentials("keyfence", "secret")),
        (" {not json", Credentials("keyfence", " {not json")),
        ('{"password": "s"}', Credentials("keyfence", "s")),
        ('{"password": "s", "username": "other"}\n', Credentials("other", "s")),
        ('{"password": "s", "expires_in": 900}', Credentials("keyfence", "s", NOW + 900)),
        ('{"password": "s", "expires_at": 4000000900.5}', Credentials("keyfence", "s", 4000000900.5)),
        (
            '{"password": "s",\n "expires_at": "2096-10-02T07:20:00Z"}',
            Credentials("keyfence", "s", 4000000800.0),
        ),
    ],
)
def test_a_line_is_the_password_and_an_object_says_more(text: str, expected: Credentials) -> None:
    assert read_text(text.encode(), "keyfence", NOW) == expected


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "gives nothing"),
        (b"\n", "gives nothing"),
        (b"hidden\nhidden\n", "gives several lines"),
        (b"\xffhidden", "gives no UTF-8 text"),
        (b"hidden" * MAX_BYTES, "gives more than 65536 bytes"),
        (b'{"username": "hidden"}', "gives JSON without a password"),
        (b'{"password": ""}', "gives JSON without a password"),
        (b'{"password": ["hidden"]}', "gives JSON without a password"),
        (b'{"password": "hidden", "username": 1}', "a username that is not text"),
        (b'{"password": "hidden", "expires_in": true}', "expires_in in another form than seconds from then"),
        (b'{"password": "hidden", "expires_in": NaN}', "expires_in in another form than seconds from then"),
        (b'{"password": "hidden", "expires_at": "soon"}', "expires_at in another form than Unix seconds"),
        (b'{"password": "hidden", "expires_at": 1}', "gives credentials that have expired"),
    ],
)
def test_any_other_text_is_refused_and_nothing_of_it_shown(data: bytes, why: str) -> None:
    with pytest.raises(NoCredentials, match=why) as caught:
        read_text(data, "keyfence", NOW)
    assert "hidden" not in str(caught.value)
