from __future__ import annotations

import pickle

import pytest

from keyfence.cli.look.naming import MAX_SERVICES, OTHERS, Naming, known
from keyfence.policy.services import UNKNOWN
from keyfence.policy.verdict import Peer


@pytest.mark.parametrize(
    ("peer", "service", "by"),
    [
        (Peer("127.0.0.1:5", "billing", "web-1", "redis-py"), "billing", "user"),
        (Peer("127.0.0.1:5", "default", "web-1", "redis-py"), "web", "client name"),
        (Peer("127.0.0.1:5", "", "orders-api-7f9c8d2e11aa", "jedis"), "orders-api", "client name"),
        (Peer("127.0.0.1:5", "", "celery@host-3"), "celery-host", "client name"),
        (Peer("127.0.0.1:5", "", "17-mailer"), "mailer", "client name"),
        (Peer("127.0.0.1:5", "", "4711", "redis-py"), "redis-py", "library"),
        (Peer("127.0.0.1:5", "", "", "go-redis(,go1.21)"), "go-redis", "library"),
        (Peer("10.1.2.3:5", "", "", "ioredis"), "ioredis-at-10-1-2-0-24", "library and 10.1.2.0/24"),
        (Peer("10.1.2.3:5"), "at-10-1-2-0-24", "10.1.2.0/24"),
        (Peer("[2001:db8::1]:5"), "at-2001-db8-64", "2001:db8::/64"),
        (Peer("[::1]:5"), UNKNOWN, ""),
        (Peer("unix:/run/redis.sock"), UNKNOWN, ""),
    ],
)
def test_a_service_is_named_by_what_is_known_best(peer: Peer, service: str, by: str) -> None:
    assert known(peer) == (service, by)


def test_instances_of_a_service_have_one_name() -> None:
    names = {known(Peer("127.0.0.1:1", "", f"web-{number}")).service for number in range(30)}
    assert names == {"web"}


def test_a_service_that_the_configuration_knows_keeps_its_name() -> None:
    assert Naming()("billing", Peer("127.0.0.1:1", "", "web-1")) == "billing"


def test_services_are_bounded() -> None:
    naming = Naming()
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [naming(UNKNOWN, Peer("", f"{one}{other}")) for one in letters[:3] for other in letters]
    assert len(set(names)) == MAX_SERVICES + 1
    assert names[-1] == OTHERS
    assert naming(UNKNOWN, Peer("", "aa")) == "aa"


def test_it_goes_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Naming()))(UNKNOWN, Peer("127.0.0.1:1", "", "web-1")) == "web"
