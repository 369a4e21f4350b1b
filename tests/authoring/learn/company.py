"""A haulage company: nine services, some tenants, four mistakes, secrets in keys, old names of keys, and two
applications that bring keys of their own (BullMQ and Celery).

The tenants stand in hash tags: `hb:{acme}:booking:1001`. All of it is drawn from a seed.
"""

from __future__ import annotations

import base64
import datetime
import random
import string
import uuid
from collections.abc import Iterator
from typing import Any

from keyfence.commands.extract import extract
from keyfence.policy.wording.command_log import as_line
from tests.authoring.learn.traffic import BLANK

SERVICES = ("gateway", "auth", "booking", "pricing", "dispatch", "tracking", "mailer", "media", "reports")
TENANTS = (
    "acme", "globex", "initech", "umbrella", "hooli", "stark-freight", "wayne", "tyrell", "cyberdyne",
    "wonka", "dunder2", "vandelay",
)  # fmt: skip
ROUTES = ("HAM-RTM", "HAM-ANR", "RTM-ANR", "LEH-RTM", "GDN-HAM", "VLC-LEH")
# The kinds of keys that are right, without those of the two applications.
KINDS = (
    "hb:flags", "hb:{<t>}:session:<x>", "hb:{<t>}:csrf:<x>", "hb:{<t>}:reset:<x>", "hb:{<t>}:user:<x>",
    "hb:{<t>}:user:<x>:devices", "hb:{<t>}:apikey:<x>", "hb:{<t>}:rate:<x>", "hb:{<t>}:booking:<x>",
    "hb:{<t>}:booking:next", "hb:{<t>}:bookings:<x>", "hb:{<t>}:quote:<x>", "hb:{<t>}:tariff:<x>",
    "hb:{<t>}:tariffs", "hb:{<t>}:fuel", "hb:{<t>}:vehicle:<x>", "hb:{<t>}:vehicle:<x>:position",
    "hb:{<t>}:fleet", "hb:{<t>}:queue:dispatch", "hb:{<t>}:events", "hb:{<t>}:lock:booking:<x>",
    "hb:{<t>}:idem:<x>", "hb:{<t>}:mail:sent:<x>", "hb:{<t>}:report:<x>", "hb:{<t>}:report:<x>:top",
    "hb:{<t>}:visitors:<x>", "hb:{<t>}:config",
)  # fmt: skip
# What BullMQ 5.81.5 and Celery 5.7 run, by the SHA-1s in their shipped policies.
ADD_JOB = "808626431266f2e834f108cac6b35ce556927132"
KOMBU_BIND = "ef7a9e205fbaf46bf959e1522ff796622fc676c7"

Command = tuple[str, list[bytes]]  # the service, and what it sends


class Company:
    """One run of the company. `secrets` are all texts that may never be shown."""

    def __init__(self, tenants: int, seed: int = 1) -> None:
        self.tenants = TENANTS[:tenants]
        self.secrets: set[str] = set()
        self.draw = random.Random(seed)

    def commands(self) -> Iterator[Command]:
        """Yields what the services send, mistakes included."""
        yield "gateway", _argv("HSET hb:flags beta 1 dark 0")
        yield from (("booking", _argv("HGETALL hb:flags")), ("gateway", _argv("HGETALL hb:flags")))
        for number, tenant in enumerate(self.tenants):
            lines = [*self._people(tenant), *self._orders(tenant), *self._roads(tenant), *self._rest(tenant)]
            lines += self._mistakes(tenant, number)
            yield from ((service, _argv(line)) for service, line in lines)
        yield from ((service, _argv(line)) for service, line in self._applications())

    def _people(self, tenant: str) -> Iterator[tuple[str, str]]:
        """What auth and gateway do with people, sessions and keys of their interfaces."""
        t = f"hb:{{{tenant}}}"
        for number in range(8):
            user, session, csrf = 3000 + self.draw.randrange(900), self._hex(32), self._base64(22)
            reset, api = self._letters(14), f"sk_live_{self._base64(24)}"
            yield "auth", f"HSET {t}:user:{user} name n email e@x.org"
            yield "auth", f"SADD {t}:user:{user}:devices {uuid.UUID(int=self.draw.getrandbits(128))}"
            yield "auth", f"HSET {t}:session:{session} user {user} since 1772445600"
            yield "auth", f"EXPIRE {t}:session:{session} 1800"
            yield "gateway", f"HGETALL {t}:session:{session}"
            yield "gateway", f"HGETALL {t}:user:{user}"
            yield "gateway", f"SET {t}:csrf:{csrf} {user} EX 3600"
            yield "gateway", f"GET {t}:csrf:{csrf}"
            yield "auth", f"HSET {t}:apikey:{api} user {user} scope read"
            yield "gateway", f"HGET {t}:apikey:{api} user"
            if number % 4 == 0:
                yield "auth", f"SET {t}:reset:{reset} {user} EX 900"
                yield "auth", f"GETDEL {t}:reset:{reset}"
            if number % 2:  # an old name of a session's key
                yield "gateway", f"HGETALL sess:{tenant}:{session}"
                yield "auth", f"DEL sess:{tenant}:{session}"
            address = f"10.{self.draw.randrange(9)}.{number}.{self.draw.randrange(250)}"
            yield "gateway", f"INCR {t}:rate:{address}"
            yield "gateway", f"EXPIRE {t}:rate:{address} 60"
            yield "gateway", f"PFADD {t}:visitors:2026030{number + 1} {user}"
            yield "gateway", f"EXPIRE {t}:visitors:2026030{number + 1} 864000"

    def _orders(self, tenant: str) -> Iterator[tuple[str, str]]:
        """What booking and pricing do."""
        t = f"hb:{{{tenant}}}"
        for route in ROUTES:
            yield "pricing", f"HSET {t}:tariff:{route} base 100 per_km 2"
            yield "pricing", f"SADD {t}:tariffs {route}"
        yield "pricing", f"SET {t}:fuel 1.79"
        for number in range(10):
            order, quote = 1000 + self.draw.randrange(9000), uuid.UUID(int=self.draw.getrandbits(128))
            request = uuid.UUID(int=self.draw.getrandbits(128))
            yield "gateway", f"SET {t}:idem:{request} 1 NX EX 86400"
            yield "pricing", f"HGETALL {t}:tariff:{ROUTES[number % 6]}"
            yield "pricing", f"GET {t}:fuel"
            yield "pricing", f"SET {t}:quote:{quote} x EX 600"
            yield "booking", f"GET {t}:quote:{quote}"
            yield "booking", f"INCR {t}:booking:next"
            yield "booking", f"SET {t}:lock:booking:{order} {quote} NX EX 30"
            yield "booking", f"HSET {t}:booking:{order} state new route {ROUTES[number % 6]} cents 12000"
            yield "booking", f"ZADD {t}:bookings:2026030{number % 9 + 1} 1772445600 {order}"
            yield "booking", f"LPUSH {t}:queue:dispatch {order}"
            yield "booking", f"XADD {t}:events MAXLEN ~ 10000 * kind booked id {order}"
            yield "booking", f"DEL {t}:lock:booking:{order}"
            yield "dispatch", f"RPOP {t}:queue:dispatch"
            yield "dispatch", f"HGETALL {t}:booking:{order}"
            yield "mailer", f"HGET {t}:booking:{order} state"
            yield "mailer", f"SET {t}:mail:sent:{order} 1 EX 2592000"
            if number % 2:  # an old name of a booking's key
                yield "booking", f"HGETALL booking:{order}"
                yield "dispatch", f"HGETALL booking:{order}"

    def _roads(self, tenant: str) -> Iterator[tuple[str, str]]:
        """What dispatch and tracking do."""
        t = f"hb:{{{tenant}}}"
        for number in range(5):
            vehicle = f"truck_{100 + number}"
            yield "dispatch", f"HSET {t}:vehicle:{vehicle} plate x tons 40"
            yield "tracking", f"HGET {t}:vehicle:{vehicle} tons"
            yield "tracking", f"SET {t}:vehicle:{vehicle}:position x EX 120"
            yield "dispatch", f"GET {t}:vehicle:{vehicle}:position"
            yield "tracking", f"GEOADD {t}:fleet 9.9 53.5 {vehicle}"
            yield "dispatch", f"GEOSEARCH {t}:fleet FROMLONLAT 9.9 53.5 BYRADIUS 100 km"
            yield "tracking", f"PUBLISH {t}:moved {vehicle}"
        yield "gateway", f"SUBSCRIBE {t}:moved"

    def _rest(self, tenant: str) -> Iterator[tuple[str, str]]:
        t = f"hb:{{{tenant}}}"
        yield "gateway", f"HSET {t}:config lang de"
        yield from ((one, f"HGETALL {t}:config") for one in SERVICES)
        yield "reports", f"XGROUP CREATE {t}:events reports 0 MKSTREAM"
        for day in range(1, 6):
            yield "reports", f"XREADGROUP GROUP reports one COUNT 9 STREAMS {t}:events >"
            yield "reports", f"ZRANGE {t}:bookings:2026030{day} 0 -1"
            yield "reports", f"HSET {t}:report:2026030{day} bookings 9 cents 99"
            yield "reports", f"ZINCRBY {t}:report:2026030{day}:top 1 HAM-RTM"
        yield "booking", f"SCAN 0 MATCH {t}:booking:* COUNT 100"

    def _mistakes(self, tenant: str, number: int) -> Iterator[tuple[str, str]]:
        t, token = f"hb:{{{tenant}}}", self._hex(32)
        for order in (1001, 1002, 1003):
            yield "pricing", f"SET bh:{{{tenant}}}:quote:{uuid.UUID(int=self.draw.getrandbits(128))} x EX 600"
            yield "booking", f"HSET {t}:booking:{order} state new"
            yield "reports", f"GET {t}:booking:{order}"  # a hash
        for order in (1001, 1002):
            yield "booking", f"HSET HB:{{{tenant}}}:booking:{order} state new"
            yield "booking", f"ZADD hb:{tenant}:bookings:20260301 1772445600 {order}"  # without braces
        yield "auth", f"HSET {t}:session:{token} user 1"
        yield "auth", f"EXPIRE {t}:session:{token} 1800"
        yield "mailer", f"HGETALL {t}:session:{token}"  # not the mailer's business
        yield "reports", "KEYS hb:*"
        if not number:
            yield "dispatch", f"HSET {t}:vehicel:truck_101 plate x"  # another typo
            yield "reports", f"KEYS {t}:session:{token[:12]}*"

    def _applications(self) -> Iterator[tuple[str, str]]:
        """What BullMQ (media) and Celery (mailer, booking) do, as far as it is commands."""
        for name in ("thumbs", "scans"):
            queue = f"bull:{name}"
            yield "media", f"HSET {queue}:meta opts.maxLenEvents 10000 version bullmq:5.81.5"
            yield "media", f"HGETALL {queue}:meta"
            yield "media", f"BZPOPMIN {queue}:marker 0.01"
            yield "media", f"XREAD COUNT 1 STREAMS {queue}:events 0"
            yield "media", f"LRANGE {queue}:wait 0 -1"
            yield "media", f"ZCARD {queue}:completed"
            yield "media", f"ZCARD {queue}:failed"
            parts = ("wait", "paused", "meta", "id", "completed", "delayed", "active", "events", "marker")
            keys = " ".join(f"{queue}:{part}" for part in parts)
            yield "media", f"EVALSHA {ADD_JOB} 9 {keys} x y z"
            for job in range(1, 6):
                yield "media", f"HGETALL {queue}:{job}"
                yield "media", f"HGET {queue}:{job} progress"
        yield "mailer", f"EVALSHA {KOMBU_BIND} 2 _kombu.binding_permanent.celery _kombu.binding_deadlines x"
        yield "mailer", "SADD _kombu.binding.celery celery"
        for _ in range(6):
            task = uuid.UUID(int=self.draw.getrandbits(128))
            yield "booking", "SMEMBERS _kombu.binding.celery"
            yield "booking", "LPUSH celery x"
            yield "mailer", "BRPOP celery 0.01"
            yield "mailer", f"HSET unacked {task} x"
            yield "mailer", f"ZADD unacked_index 1772445600 {task}"
            yield "mailer", f"SETEX celery-task-meta-{task} 86400 x"
            yield "mailer", f"PUBLISH celery-task-meta-{task} x"
            yield "booking", f"GET celery-task-meta-{task}"
            yield "mailer", f"ZREM unacked_index {task}"
            yield "mailer", f"HDEL unacked {task}"

    # -- secrets

    def _secret(self, text: str) -> str:
        self.secrets.add(text)
        return text

    def _hex(self, length: int) -> str:
        return self._secret(f"{self.draw.getrandbits(4 * length):0{length}x}")

    def _base64(self, length: int) -> str:
        return self._secret(base64.urlsafe_b64encode(self.draw.randbytes(length)).decode()[:length])

    def _letters(self, length: int) -> str:
        return self._secret("".join(self.draw.choice(string.ascii_lowercase) for _ in range(length)))


def lines_of(company: Company) -> list[dict[str, Any]]:
    """Returns the command log of the company, as the recorder writes it."""
    start = datetime.datetime(2026, 3, 2, tzinfo=datetime.UTC)
    return [
        {"time": (start + datetime.timedelta(minutes=number)).isoformat()}
        | as_line(BLANK, service, argv, extract(argv), 1)
        for number, (service, argv) in enumerate(company.commands())
    ]


def _argv(line: str) -> list[bytes]:
    return line.encode().split()
