"""Uses Django's cache and sessions, and prints the results. Arguments: Redis' URL, whether to clear."""

from __future__ import annotations

import json
import sys

import django
from django.conf import settings


def main(url: str, clear: str) -> None:
    settings.configure(
        CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}},
        SESSION_ENGINE="django.contrib.sessions.backends.cache",
    )
    django.setup()
    from django.contrib.sessions.backends.cache import SessionStore
    from django.core.cache import cache

    cache.set("a", {"n": 1}, 60)
    cache.set("forever", 1, None)
    cache.set_many({"b:1": 1, "b:2": 2}, 60)
    cache.add("a", "other")
    cache.add("counter", 1, 60)
    cache.incr("counter", 2)
    cache.touch("a", 120)
    session = SessionStore()
    session["user"] = "ada"
    session.create()
    session["seen"] = 1
    session.save()
    seen = {
        "a": cache.get("a"),
        "many": cache.get_many(["b:1", "b:2", "b:3"]),
        "counter": cache.get("counter"),
        "has": cache.has_key("forever"),
        "session": SessionStore(session.session_key).load(),
        "or": cache.get_or_set("made", lambda: 7, 60),
        "version": cache.incr_version("made"),
    }
    session.flush()
    cache.delete("a")
    cache.delete_many(["b:1", "b:2"])
    if clear == "clear":
        cache.clear()
    seen["left"] = cache.get("forever")
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
