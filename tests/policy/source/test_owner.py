"""`owner: {docs: URL}` is the address of a page, and nothing else."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from keyfence.policy.source.model import Owner


@pytest.mark.parametrize(
    "address",
    [
        "https://wiki.example/redis-keys",
        "http://10.0.0.7:8080/a?b=c&d#keys",
        "https://host",
        "https://[::1]:8080/x",
        "",
    ],
)
def test_an_address_of_a_page_is_taken(address: str) -> None:
    assert Owner(docs=address).docs == address


@pytest.mark.parametrize(
    "address",
    [
        "wiki/redis",
        "javascript:alert(1)",
        "https://",
        "https://a b",
        'https://a/"onclick="x',
        "https://a/<b>",
        "ftp://a/b",
        "https://a/\n",
        "https://a/é",
        "data:text/html,x",
        "https://user:pw@a/b",
    ],
)
def test_anything_else_is_a_fault(address: str) -> None:
    with pytest.raises(ValidationError, match="is not the address of a page; write it as https://HOST/PATH"):
        Owner(docs=address)
