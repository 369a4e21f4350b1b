from __future__ import annotations

from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from keyfence.admin.access import Access, Refusal
from keyfence.admin.token import Token
from keyfence.web.sessions import LIFETIME, MAX_SESSIONS, Sessions, cookie_name, drop_cookie, set_cookie
from tests.admin.tokens import tokens

TOKEN = b"the-token-of-this-test"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(cookie: str = "", host: str = "keyfence.internal:9464", **headers: str) -> web.Request:
    named = {"Host": host, **headers}
    if cookie:
        named["Cookie"] = f"keyfence_9464={cookie}"
    return make_mocked_request("GET", "/", headers=named)


def sessions(token: bytes | None = TOKEN) -> tuple[Sessions, Access, Clock]:
    access, clock = Access([], tokens(token)), Clock()
    return Sessions(access, clock), access, clock


def test_the_right_token_opens_a_session() -> None:
    made, _, _ = sessions()
    one = made.sign_in("ann", f" {TOKEN.decode()}\n")
    found = made.find(request(one))
    assert found is not None
    assert found.who == "ann"
    assert TOKEN.decode() not in one + found.csrf
    assert made.find(request()) is None
    assert made.find(request(one + "x")) is None


@pytest.mark.parametrize("token", ["", "wrong", TOKEN.decode() + "x", "\udcff"])
def test_a_wrong_token_opens_none(token: str) -> None:
    made, _, _ = sessions()
    with pytest.raises(Refusal) as refusal:
        made.sign_in("ann", token)
    assert (refusal.value.status, refusal.value.reason) == (401, "wrong_token")


def test_without_a_token_nobody_signs_in() -> None:
    made, access, _ = sessions(None)
    assert not made.possible
    with pytest.raises(Refusal):
        made.sign_in("ann", "")
    access.take([], tokens(TOKEN))
    assert made.possible


def test_a_session_ends_after_its_time() -> None:
    made, _, clock = sessions()
    one = made.sign_in("ann", TOKEN.decode())
    clock.now += LIFETIME - 1
    assert made.find(request(one)) is not None
    clock.now += 1
    assert made.find(request(one)) is None


def test_a_change_of_the_token_ends_every_session_and_a_reload_of_the_same_one_none() -> None:
    made, access, _ = sessions()
    one = made.sign_in("ann", TOKEN.decode())
    access.take(["another.name"], tokens(TOKEN))
    assert made.find(request(one)) is not None
    access.take([], tokens(b"another-token-0123456789"))
    assert made.find(request(one)) is None
    access.take([], tokens(TOKEN))
    assert made.find(request(one)) is None


def test_signing_out_ends_one_session() -> None:
    made, _, _ = sessions()
    first, second = (made.sign_in(name, TOKEN.decode()) for name in ("ann", "bob"))
    made.sign_out(request(first))
    assert made.find(request(first)) is None
    assert made.find(request(second)) is not None
    made.sign_out(request())


def test_the_number_of_sessions_is_bounded_and_the_oldest_makes_room() -> None:
    made, _, _ = sessions()
    ids = [made.sign_in("ann", TOKEN.decode()) for _ in range(MAX_SESSIONS + 1)]
    assert made.find(request(ids[0])) is None
    assert all(made.find(request(one)) is not None for one in ids[1:])


def test_a_change_needs_a_session_and_the_secret_of_its_form() -> None:
    made, _, _ = sessions()
    one = made.sign_in("ann", TOKEN.decode())
    held = made.find(request(one))
    assert held is not None
    assert made.check(request(one), held.csrf) is held
    for cookie, csrf, reason in (("", held.csrf, "no_token"), (one, "", "csrf"), (one, "ü\udcff", "csrf")):
        with pytest.raises(Refusal) as refusal:
            made.check(request(cookie), csrf)
        assert refusal.value.reason == reason


def cookie_of(asked: web.Request) -> Any:
    response = web.Response()
    set_cookie(asked, response, "id")
    return response.cookies[cookie_name(asked)]


def test_the_cookie_is_for_this_listener_and_for_no_script_and_no_other_site() -> None:
    cookie = cookie_of(request())
    assert (cookie.key, cookie.value) == ("keyfence_9464", "id")
    assert cookie["httponly"] is True
    assert cookie["samesite"] == "Strict"
    assert int(cookie["max-age"]) == LIFETIME
    assert cookie["domain"] == ""
    assert not cookie["secure"]
    assert cookie_of(request(host="localhost:9999")).key == "keyfence_9999"


def test_behind_tls_the_cookie_is_for_tls_only() -> None:
    assert cookie_of(request(Origin="https://keyfence.internal:9464"))["secure"] is True


def test_a_cookie_is_dropped_by_its_name() -> None:
    response = web.Response()
    drop_cookie(request(), response)
    assert SimpleCookie(response.cookies.output(header=""))["keyfence_9464"]["max-age"] == "0"


def test_a_host_that_is_no_host_is_no_error() -> None:
    class Broken:
        @property
        def port(self) -> int:
            raise ValueError("not a port")

    assert cookie_name(cast(web.Request, SimpleNamespace(url=Broken()))) == "keyfence"


def test_the_name_of_the_token_stands_beside_the_name_that_was_written() -> None:
    made = Sessions(Access([], [Token("ci", "waive", TOKEN)]))
    for written, who in (("ann", "ann (token ci)"), ("ci", "ci")):
        one = made.sign_in(written, TOKEN.decode())
        found = made.find(request(one))
        assert found is not None
        assert (found.who, made.who(one), found.token.role) == (who, who, "waive")


def test_one_token_s_holders_sign_out_nobody_else() -> None:
    readers, operators = Token("readers", "read", b"r" * 16), Token("operators", "operate", TOKEN)
    access = Access([], (operators, readers))
    made = Sessions(access, Clock())
    first, second = (made.sign_in("ann", TOKEN.decode()) for _ in range(2))
    held = [made.sign_in("bob", "r" * 16) for _ in range(MAX_SESSIONS)]
    assert made.find(request(first)) is not None
    assert made.find(request(second)) is not None
    assert [made.find(request(one)) is not None for one in held] == [False, False, *[True] * 98]
    third = made.sign_in("ann", TOKEN.decode())
    assert made.find(request(third)) is not None
    assert made.find(request(first)) is not None
