"""Names of the policy become identifiers that every language takes."""

from __future__ import annotations

import pytest

from keyfence.authoring.export.identifiers import (
    Taken,
    camel,
    go_camel,
    go_pascal,
    pascal,
    screaming,
    snake,
    words,
)
from keyfence.authoring.export.languages import LANGUAGES


@pytest.mark.parametrize(
    ("name", "as_snake", "as_pascal", "as_camel", "in_go"),
    [
        ("sandboxID", "sandbox_id", "SandboxId", "sandboxId", "sandboxID"),
        ("node-metric ttl", "node_metric_ttl", "NodeMetricTtl", "nodeMetricTtl", "nodeMetricTTL"),
        ("HostIP", "host_ip", "HostIp", "hostIp", "hostIP"),
        ("__last_renew", "last_renew", "LastRenew", "lastRenew", "lastRenew"),
        ("2fa:code", "key_2_fa_code", "Key2FaCode", "key2FaCode", "key2FaCode"),
        ("", "key", "Key", "key", "key"),
        ("ключ", "key", "Key", "key", "key"),
        ("shop/lock", "shop_lock", "ShopLock", "shopLock", "shopLock"),
    ],
)
def test_a_name_has_the_case_of_the_language(
    name: str, as_snake: str, as_pascal: str, as_camel: str, in_go: str
) -> None:
    assert (snake(name), pascal(name), camel(name), go_camel(name)) == (as_snake, as_pascal, as_camel, in_go)
    assert screaming(name) == as_snake.upper()
    assert go_pascal(name).lower() == in_go.lower()
    assert words(name)[0][0].isalpha()


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=lambda one: one.name)
def test_a_word_of_the_language_and_a_name_that_is_taken_get_a_number(language: object) -> None:
    reserved = language.reserved  # type: ignore[attr-defined]
    taken = Taken(reserved)
    word = min(reserved)
    assert taken.take(word) == f"{word}_2"
    assert [taken.take("cart"), taken.take("cart"), taken.take("cart")] == ["cart", "cart_2", "cart_3"]
