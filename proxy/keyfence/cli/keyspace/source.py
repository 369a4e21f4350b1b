"""Which Redis a command works on: named by its URL, by a configuration, or an RDB file.

Rule: a URL has the same forms here as for `keyfence run --upstream`, and the configuration's login and TLS
apply to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Iterator

from keyfence.audit.servers.links import Endpoint, Link, LinkError
from keyfence.audit.servers.rdb import loaded
from keyfence.cli.terminal.asking import source_url
from keyfence.cli.terminal.output import fail
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.downstream.tls import upstream_context
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.credentials.model import NoCredentials, fetched
from keyfence.upstream.embedded import EmbeddedRedisError
from keyfence.upstream.health import Upstream
from keyfence.upstream.sentinel.follower import Follower

from .asked import is_file


def settings_of(config: str, policy: str, source: str, *, needs_policy: bool = True) -> Settings:
    """The settings that name policy and Redis. A fault ends the command."""
    if source_url(source) and is_file(source) and not os.path.lexists(source):
        fail(f"{source} is neither a file nor the URL of a Redis; write redis://{source}")
    url = "" if is_file(source) else source
    settings = load_settings(config, Overrides(policy=policy, upstream=url), needs_policy=needs_policy)
    if settings.upstream is None and not is_file(source):
        fail("name a Redis: redis://HOST:PORT, or --config with a configuration that has an upstream")
    return settings


@contextlib.contextmanager
def opened(settings: Settings, source: str) -> Iterator[Endpoint]:
    """How to connect to the Redis. A fault ends the command."""
    if is_file(source):
        with contextlib.ExitStack() as stack:
            try:
                endpoint = stack.enter_context(loaded(source))
            except EmbeddedRedisError as exc:
                fail(str(exc))
            yield endpoint
        return
    assert settings.upstream is not None
    endpoint = Endpoint(settings.upstream, upstream_context(settings), settings.connect_timeout)
    address = _logged_in(_led_by_sentinels(endpoint), settings.connect_timeout)
    yield _at_a_node(dataclasses.replace(endpoint, address=address))


def _at_a_node(endpoint: Endpoint) -> Endpoint:
    """The same, at the first of the named nodes of a cluster that answers."""
    for host, port in endpoint.address.cluster:
        node = dataclasses.replace(
            endpoint, address=dataclasses.replace(endpoint.address, host=host, port=port)
        )
        with contextlib.suppress(LinkError):
            Link(node).close()
            return node
    return endpoint


def _led_by_sentinels(endpoint: Endpoint) -> UpstreamAddress:
    """The address, with the host and port that Sentinels name now. If they name none, the command ends."""
    if endpoint.address.sentinels is None:
        return endpoint.address
    upstream = Upstream(endpoint.address, endpoint.tls, endpoint.connect_timeout)
    follower = Follower(upstream, endpoint.address.sentinels)
    if not asyncio.run(follower.find()):
        fail(follower.trouble)
    return upstream.address


def _logged_in(address: UpstreamAddress, seconds: float) -> UpstreamAddress:
    """The address with the login of now. If there is none, the command ends."""
    if address.credentials is None:
        return address
    try:
        login = asyncio.run(fetched(address.credentials, seconds))
    except NoCredentials as exc:
        fail(f"{exc}{f'; it wrote: {exc.detail}' if exc.detail else ''}")
    return dataclasses.replace(address, username=login.username, password=login.password)
