"""Uses Flask-Caching and Flask-Session, and prints the results. Arguments: Redis' URL, whether to clear."""

from __future__ import annotations

import json
import sys

import flask
import redis
from flask_caching import Cache
from flask_session import Session


def main(url: str, clear: str) -> None:
    app = flask.Flask("tests")
    app.config.update(
        CACHE_TYPE="RedisCache",
        CACHE_REDIS_URL=url,
        CACHE_KEY_PREFIX="flask_cache_",
        SESSION_TYPE="redis",
        SESSION_REDIS=redis.Redis.from_url(url),
    )
    cache = Cache(app)
    Session(app)
    calls: list[int] = []

    @app.get("/page/<name>")
    @cache.cached(timeout=60)
    def page(name: str) -> str:
        calls.append(1)
        return name

    @app.get("/visit")
    def visit() -> str:
        flask.session["visits"] = flask.session.get("visits", 0) + 1
        return str(flask.session["visits"])

    @app.get("/leave")
    def leave() -> str:
        flask.session.clear()
        return "bye"

    @cache.memoize(timeout=60)
    def double(n: int) -> int:
        calls.append(1)
        return 2 * n

    client = app.test_client()
    pages = [client.get("/page/a").text for _ in range(2)]
    visits = [client.get("/visit").text for _ in range(3)]
    client.get("/leave")
    with app.app_context():
        doubled = [double(4), double(4)]
        cache.delete_memoized(double)
        cache.set("a", {"n": 1})
        cache.set_many({"b": 1, "c": 2})
        seen = {
            "pages": pages,
            "visits": visits,
            "doubled": doubled,
            "a": cache.get("a"),
            "many": cache.get_many("b", "c", "d"),
            "has": cache.has("b"),
            "calls": len(calls),
        }
        cache.delete("a")
        cache.delete_many("b", "c")
        if clear == "clear":
            cache.set("left", 1)
            cache.clear()
        seen["left"] = cache.get("left")
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
