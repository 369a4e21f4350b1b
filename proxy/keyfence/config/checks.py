"""Checks of settings that depend on each other.

Rule: a check returns every fault, each at the setting to change. A single value is checked in `fields`.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

from keyfence.identity.networks import Network
from keyfence.net.addresses import Address, ip_address, is_this_machine, parse_address
from keyfence.net.host_port import host_port
from keyfence.policy.diagnostics import Diagnostic
from keyfence.upstream.address import parse_upstream
from keyfence.upstream.credentials.clouds import missing

from .fields import parse_network
from .models import ConfigModel, ListenerModel
from .sentinel import is_reachable
from .settings import Settings
from .upstream import SENTINEL, AnnounceModel, UpstreamModel, replicas_of


def faults_of(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    """Every fault of a configuration file and the settings made of it."""
    return [
        *policy_faults(model, settings),
        *network_faults(settings),
        *listener_faults(settings),
        *address_faults(settings),
        *sentinel_faults(model, settings),
        *password_faults(settings),
        *upstream_faults(model, settings),
        *cluster_faults(model.upstream, settings),
        *credentials_faults(model, settings),
        *replica_faults(model, settings),
        *split_faults(model, settings),
        *notify_faults(settings),
    ]


def policy_faults(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    """Settings of the policy's source that contradict each other."""
    faults = [settings.fault(("policy", name), text) for name, text in model.policy.faults()]
    if settings.source is not None:
        try:
            model.policy.trusted(Path(settings.source.file).parent)
        except ValueError as exc:
            faults.append(settings.fault(("policy", "trust"), str(exc)))
    return faults


def notify_faults(settings: Settings) -> list[Diagnostic]:
    """A webhook or news without findings to tell of, and news that cannot be sent."""
    told = {"notify": settings.notify, "news": settings.news}
    text = "tells of findings, and there is no store of findings; remove it, or name a store"
    faults = [
        settings.fault((name,), f"{name} {text}")
        for name, said in told.items()
        if said is not None and not settings.findings
    ]
    of_news = settings.news.faults() if settings.news is not None else ()
    return [*faults, *(settings.fault(path, text) for path, text in of_news)]


def listener_faults(settings: Settings) -> list[Diagnostic]:
    """Settings of a listener that contradict each other."""
    faults = []
    for index, one in enumerate(settings.listeners):
        wrong = {
            "unix_mode": (
                one.unix_mode is not None and not one.address.unix_path,
                f"unix_mode is for unix sockets, and {one.listen} is not one; remove it",
            ),
            "trusted": (
                bool(one.trusted) and not one.proxy_protocol,
                "trusted says who may send PROXY headers, and none is expected; add proxy_protocol: true",
            ),
            "tls": (
                one.tls is not None and one.tls.requires_certificate and not one.tls.client_ca,
                "require_client_cert needs client_ca, the file of the authorities that vouch for clients",
            ),
        }
        if one.trusted and one.address.unix_path:
            wrong["trusted"] = (
                True,
                "trusted is for networks, and a unix socket's clients come from none; use unix_mode",
            )
        faults += [
            settings.fault(("listeners", index, name), text) for name, (is_so, text) in wrong.items() if is_so
        ]
    return faults


def address_faults(settings: Settings) -> list[Diagnostic]:
    """Listeners at an address that is given twice. With workers the kernel would share its connections among
    both, so a client would be now this service and now that one."""
    taken = {
        _place_of(address): name
        for name, address in (("admin", settings.admin), ("metrics", settings.metrics))
        if address is not None
    }
    faults = []
    for index, one in enumerate(settings.listeners):
        place = _place_of(one.address)
        if place in taken and place[1] != 0:  # port 0 is another port each time
            text = f"{one.listen} is the address of {taken[place]} too; give each its own"
            faults.append(settings.fault(("listeners", index, "listen"), text))
        taken.setdefault(place, "another listener")
    return faults


def _place_of(address: Address) -> tuple[str, int]:
    """What is equal for equal addresses: host and port, or a path and -1."""
    if address.unix_path:
        return os.path.realpath(address.unix_path), -1
    host, port = address.host_port
    return str(ip_address(host) or host.lower()), port


def sentinel_faults(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    """Sentinel listeners whose primaries have no name, or no address that clients can reach."""
    faults = []
    for index, one in enumerate(settings.listeners):
        path = ("listeners", index, "sentinel")
        is_list = bool(one.primaries) and isinstance(model.listeners[index].sentinel, list)
        names = [primary.name for primary in one.primaries]
        for number, primary in enumerate(one.primaries):
            at = (*path, number) if is_list else path
            if not primary.name:
                text = "no name that clients ask for; write sentinel: {name: NAME}, as their settings have it"
                faults.append(settings.fault(at, text))
            elif names.index(primary.name) < number:
                faults.append(settings.fault((*at, "name"), f"{primary.name!r} is named twice; remove one"))
            if not primary.address and (why := _unnameable(settings, one)):
                faults.append(settings.fault(at, f"{why}; write sentinel: {{address: HOST:PORT}}"))
    if not settings.serving:
        text = "every listener answers as a Sentinel; add one without sentinel, for Redis' clients"
        faults.append(settings.fault(("listeners",), text))
    return faults


def _unnameable(settings: Settings, listener: ListenerModel) -> str:
    """Why a Sentinel listener that is not told an address can name none; "": it can."""
    named = settings.named_by_default(listener)
    if named is None:
        return "keyfence does not know which listener's address to name"
    if not is_reachable(named.address):
        return f"clients cannot be told to connect to {named.listen}"
    local, asked = is_this_machine(named.address.host_port[0]), listener.address
    if local and not asked.unix_path and not is_this_machine(asked.host_port[0]):
        return f"clients of other machines cannot connect to {named.listen}"
    return ""


def password_faults(settings: Settings) -> list[Diagnostic]:
    """Users whose service is given twice."""
    said = settings.identify
    return [
        settings.fault(
            ("identify", "passwords", user, "service"),
            f"the service of {user!r} is given under users too; give it in one place",
        )
        for user, one in said.passwords.items()
        if one.service and user in said.users
    ]


def upstream_faults(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    """Settings of the upstream that contradict each other, have no effect, or lack their counterpart."""
    said = model.upstream
    faults = []
    if said.url:
        login = parse_upstream(said.url)
        faults += [
            settings.fault(("upstream", name), f"the URL names a {name} too; give it in one place")
            for name in ("username", "password")
            if getattr(said, name) and getattr(login, name)
        ]
        if said.sentinel is not None:
            text = "the URL names the Redis, and so do Sentinels; give it in one place"
            faults.append(settings.fault(("upstream", "sentinel"), text))
    elif (said.username or said.password) and said.sentinel is None and said.cluster is None:
        faults.append(settings.fault(("upstream",), "a login needs a url; name the Redis that it is for"))
    if said.username and not said.credentials and settings.upstream and not settings.upstream.password:
        text = "a username needs its password; write password: file:PATH or ${NAME}"
        faults.append(settings.fault(("upstream", "username"), text))
    for name, other in (("cert", "key"), ("key", "cert")):
        if getattr(said, name) and not getattr(said, other):
            text = f"a certificate and its key are both needed; add {other}:"
            faults.append(settings.fault(("upstream", name), text))
    if settings.upstream is not None and settings.upstream.kind != "tls":
        faults += [
            settings.fault(("upstream", name), f"{name} is for TLS only; {_TLS[said.sentinel is None]}")
            for name in ("cert", "key", "server_name")
            if getattr(said, name)
        ]
    return faults


def replica_faults(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    """Reads from replicas that cannot take place."""
    said, faults = model.upstream, []
    if said.replicas and said.mode != "shared":
        text = "reads from replicas need mode: shared, because a dedicated connection leads to the primary"
        faults.append(settings.fault(("upstream", "replicas"), f"{text}; remove mode, or replicas"))
    if said.replicas and said.cluster is not None:
        text = "the topology names the replicas of a cluster, for reads with expose: single; remove replicas"
        faults.append(settings.fault(("upstream", "replicas"), text))
    elif said.replicas == SENTINEL and said.sentinel is None:
        text = "no Sentinels are named that know the replicas; list them as HOST:PORT, or add sentinel:"
        faults.append(settings.fault(("upstream", "replicas"), text))
    elif said.replicas and not said.url and said.sentinel is None:
        text = "replicas need a url or Sentinels; name the Redis whose replicas they are"
        faults.append(settings.fault(("upstream", "replicas"), text))
    named = replicas_of(said)
    nodes = () if named == SENTINEL else named
    for index, node in enumerate(nodes):
        text = ""
        if said.url and node == (parse_upstream(said.url).host, parse_upstream(said.url).port):
            text = f"{host_port(*node)} is the primary itself; remove it"
        elif node in nodes[:index]:
            text = f"{host_port(*node)} is named twice; remove one"
        if text:
            faults.append(settings.fault(("upstream", "replicas", index), text))
    text = ""
    if said.cluster is None:
        text = "" if said.replicas else "no replicas are named to read from; add replicas: to upstream"
    elif said.expose is None:
        text = (
            "clients that know clusters choose the node of each read themselves, and read at a replica's "
            "listener after READONLY; remove reads, or write expose: single in place of announce"
        )
    for service, one in model.reads.items():
        if one.at == "replicas" and text:
            faults.append(settings.fault(("reads", service), text))
    return faults


def split_faults(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    """Commands in parts where keyfence does not choose the nodes."""
    if not model.split or model.upstream.expose is not None:
        return []
    text = "commands are sent in parts before a cluster behind one address only"
    remedy = "add cluster: and expose: single to upstream, or remove split"
    return [settings.fault(("split",), f"{text}; {remedy}")]


def cluster_faults(said: UpstreamModel, settings: Settings) -> list[Diagnostic]:
    """Settings for a cluster that contradict each other, or lack their counterpart."""
    cluster, announce = ("upstream", "cluster"), ("upstream", "announce")
    expose = ("upstream", "expose")
    if said.cluster is None:
        text = "is for a cluster, in place of its nodes' addresses; add cluster:, or remove"
        given = [(announce, said.announce), (expose, said.expose)]
        return [
            settings.fault(path, f"{path[1]} {text} {path[1]}") for path, value in given if value is not None
        ]
    faults = []
    for name, value in (("url", said.url), ("sentinel", said.sentinel)):
        if value:
            text = f"{name} names a Redis too; keyfence has one upstream: remove {name}, or cluster"
            faults.append(settings.fault(cluster, text))
    if said.announce is None and said.expose is None:
        text = (
            "clients would learn the nodes' own addresses; write announce: {host: HOST, ports: FIRST-LAST} "
            "for clients that know clusters, or expose: single for those that do not"
        )
        faults.append(settings.fault(cluster, text))
    if said.announce is not None and said.expose is not None:
        text = "clients get one address of keyfence or one for each node; remove expose, or announce"
        faults.append(settings.fault(expose, text))
    if said.expose is not None:
        faults += _single_faults(said, settings)
    served = settings.serving
    if said.expose is None and len(settings.listeners) > 1:
        text = (
            "with announce, one listener stands for all nodes: remove this one, and tell services apart by "
            "login, certificate or network (identify), or write expose: single in place of announce"
        )
        faults.append(settings.fault(("listeners", 1), text))
    elif said.expose is None and (len(served) != 1 or served[0].address.unix_path):
        text = "a cluster needs one listener, of HOST:PORT, which stands for all nodes"
        faults.append(settings.fault(("listeners",), text))
    if said.announce is not None:
        faults += _announce_faults(said.announce, settings)
    return faults


def _single_faults(said: UpstreamModel, settings: Settings) -> list[Diagnostic]:
    """What cannot be with a cluster behind one address."""
    faults = []
    if said.mode == "dedicated":
        text = "a cluster behind one address needs connections that clients share; remove mode: dedicated"
        faults.append(settings.fault(("upstream", "mode"), text))
    return faults


def _announce_faults(said: AnnounceModel, settings: Settings) -> list[Diagnostic]:
    """Ports of a cluster's nodes that are used for something else, or twice."""
    path = ("upstream", "announce")
    faults = []
    own = [("a listener", one.address) for one in settings.serving if not one.address.unix_path]
    own += [(name, one) for name, one in (("admin", settings.admin), ("metrics", settings.metrics)) if one]
    for name, address in own:
        port = address.host_port[1]
        if port in said.range or port in said.nodes.values():
            text = f"port {port} is that of {name} too; give it another one, or announce other ports"
            faults.append(settings.fault((*path, "ports"), text))
    for node, port in said.nodes.items():
        try:
            parse_address(node)
        except ValueError as exc:
            faults.append(settings.fault((*path, "nodes", node), str(exc)))
        if list(said.nodes.values()).count(port) > 1:
            text = f"port {port} is given to two nodes; give each node its own"
            faults.append(settings.fault((*path, "nodes", node), text))
    return faults


def credentials_faults(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    """A login that is given twice, or a source of credentials that cannot give any."""
    said = model.upstream
    if said.credentials is None:
        return []
    faults = []
    if said.password or (said.url and parse_upstream(said.url).password):
        text = "the upstream's password is given too; give it in one place"
        faults.append(settings.fault(("upstream", "credentials"), text))
    if not said.url and said.sentinel is None and said.cluster is None:
        text = "credentials need a url; name the Redis that they are for"
        faults.append(settings.fault(("upstream", "credentials"), text))
    faults += _cloud_faults(said, settings)
    if said.credentials.env and said.credentials.env not in os.environ:
        text = f"the environment has no {said.credentials.env}; set it"
        faults.append(settings.fault(("upstream", "credentials", "env"), text))
    return faults


def _cloud_faults(said: UpstreamModel, settings: Settings) -> list[Diagnostic]:
    """What a cloud's credentials lack."""
    upstream, credentials = settings.upstream, said.credentials
    assert credentials is not None
    if upstream is None or upstream.credentials is None:
        return []
    texts = [missing(upstream.credentials)]
    if credentials.aws_iam is not None:
        texts.append("" if said.user else "AWS IAM needs the user; write username: beside credentials:")
        texts.append("" if upstream.kind == "tls" else f"AWS IAM is for TLS only; {_TLS[not said.sentinel]}")
    path = ("upstream", "credentials", credentials.kind)
    return [settings.fault(path, text) for text in texts if text]


# How TLS is asked for: without and with a URL.
_TLS = ("add tls: true to sentinel", "write the URL as rediss://HOST:PORT")


def network_faults(settings: Settings) -> list[Diagnostic]:
    """Networks that cannot be used, or that are given twice. They are keys of a mapping, which no type
    checks."""
    faults: list[Diagnostic] = []
    known: dict[Network, str] = {}
    for text in settings.identify.networks:
        path = ("identify", "networks", text)
        try:
            network = ipaddress.ip_network(parse_network(text))
        except ValueError as exc:
            faults.append(settings.fault(path, f"{exc}"))
            continue
        if network in known:
            faults.append(settings.fault(path, f"{text!r} is the network {known[network]!r} too; remove one"))
        known.setdefault(network, text)
    return faults
