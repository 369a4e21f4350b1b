"""The URL of a Redis with policies is read in its few forms, and never shown with its password."""

from __future__ import annotations

import pytest

from keyfence.fleet.redis_url import RedisPlace, parse_redis_url


@pytest.mark.parametrize(
    ("text", "place", "shown"),
    [
        (
            "redis://store",
            RedisPlace("store", 6379, False, "", "", 0, "keyfence"),
            "redis://store:6379/keyfence",
        ),
        (
            "rediss://me:a%2Fb@store:7000/3/team-a",
            RedisPlace("store", 7000, True, "me", "a/b", 3, "team-a"),
            "rediss://store:7000/3/team-a",
        ),
        (
            "redis://:pw@[::1]/3",
            RedisPlace("::1", 6379, False, "", "pw", 3, "keyfence"),
            "redis://[::1]:6379/3/keyfence",
        ),
    ],
)
def test_a_url_names_host_login_database_and_prefix(text: str, place: RedisPlace, shown: str) -> None:
    assert parse_redis_url(text) == place
    assert place.shown == shown


@pytest.mark.parametrize(
    "text",
    [
        *(
            "SECRET",
            "http://SECRET@store",
            "redis://",
            "redis://:SECRET@store:port",
            "redis://:SECRET@store:0",
        ),
        *("redis://:SEC/RET@store", "redis://:SECRET@store/1/a/b", "redis://:SECRET@store/a b"),
        *("redis://:SECRET@store?db=1", "redis://:SECRET@store#1", "redis://[:SECRET@store"),
    ],
)
def test_another_text_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"write ") as caught:
        parse_redis_url(text)
    assert "SEC" not in str(caught.value)
