"""Who is refused finds the page that describes the convention: in the refusal, and on keyfence's own page."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
import redis

from tests.clients.running import ask, eventually
from tests.servers import Keyfence, running_redis

PAGE = "https://wiki.example/redis-keys"
POLICY = f"""
policy: shop
owner: {{team: shop, contact: "#shop", docs: "{PAGE}"}}
claims: ["shop:"]
services: [web, stock]
placeholders: {{id: "[a-z0-9]+"}}
keys:
  cart: {{key: "shop:cart:<id>", writers: [web], readers: [stock], type: hash}}
"""


def html(url: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_a_refusal_and_the_page_link_to_the_entry_s_part_of_the_convention(tmp_path: Path) -> None:
    policy = tmp_path / "shop.yaml"
    policy.write_text(POLICY)
    with (
        running_redis() as server,
        Keyfence(
            *("--policy", policy, "--upstream", server.url, "--listen", "127.0.0.1:0", "--service", "stock"),
            *(
                "--mode",
                "enforce",
                "--admin",
                "127.0.0.1:0",
                "--findings",
                f"sqlite:///{tmp_path}/findings.db",
            ),
        ) as keyfence,
        keyfence.client() as client,
    ):
        with pytest.raises(redis.exceptions.NoPermissionError) as refused:
            client.hset("shop:cart:c1", "a", "1")
        assert f"its writers: web; see {PAGE}#cart. Ask #shop." in str(refused.value)
        with pytest.raises(redis.exceptions.NoPermissionError) as unknown:
            client.get("shop:basket:c1")
        assert f"see {PAGE}. Ask #shop." in str(unknown.value)

        admin = keyfence.ready.admin

        def found() -> list[dict[str, str]]:
            findings: list[dict[str, str]] = json.loads(ask(keyfence, "/findings?rule=scope.write")[1])[
                "findings"
            ]
            return findings

        eventually(found, "the refusal became a finding")
        assert f'href="{PAGE}#cart"' in html(f"{admin}/findings/{found()[0]['id']}")
        page = html(f"{admin}/policy")
        assert f'href="{PAGE}#cart"' in page
        assert f'href="{PAGE}"' in page
