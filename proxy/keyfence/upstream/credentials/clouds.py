"""Credentials of clouds, each from its own library.

Rule: a library is an optional extra, and is imported when credentials are fetched. It works in a thread,
which is left behind if it takes too long. Each fetch begins anew, so that no library's cache gives a token
that is about to end. What a library says about its failure is for operators only.
"""

from __future__ import annotations

import asyncio
import calendar
import dataclasses
import importlib
import importlib.util
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from .model import Credentials, NoCredentials, Source

AWS_SECONDS = 900.0  # of a token's life
AWS_CONNECTED_SECONDS = 12 * 3600.0  # after which AWS closes a connection that has not sent AUTH again
AZURE_RESOURCE = "https://redis.azure.com/"
AZURE_LOGIN = "https://login.microsoftonline.com"
GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class FromAws(Source):
    """A token of AWS IAM for ElastiCache or MemoryDB: a signed URL, made on this machine."""

    cache: str  # the name of the replication group, of the serverless cache, or of the cluster
    region: str = ""  # empty: as the AWS configuration of this machine says
    service: str = "elasticache"  # or memorydb
    is_serverless: bool = False

    needs = ("botocore", "aws")  # the package, and the extra that installs it

    @property
    def shown(self) -> str:
        return f"AWS IAM, user {self.username}"

    async def fetch(self, seconds: float) -> Credentials:
        return await _of_library(self._fetch, seconds, "AWS")

    def _fetch(self) -> Credentials:
        session = _library("botocore.session").get_session()
        region = self.region or session.get_config_variable("region")
        keys = session.get_credentials()
        if not region or keys is None:
            what = "credentials" if region else "region"
            raise NoCredentials(f"this machine's AWS configuration has no {what}; give it one")
        signer = _library("botocore.signers").RequestSigner(
            _library("botocore.model").ServiceId(self.service),
            region,
            self.service,
            "v4",
            keys,
            session.get_component("event_emitter"),
        )
        now = time.time()
        query = {"Action": "connect", "User": self.username}
        if self.is_serverless:
            query["ResourceType"] = "ServerlessCache"
        request = {"method": "GET", "url": f"https://{self.cache}/?{urlencode(query)}", "body": {}}
        signed: str = signer.generate_presigned_url(
            request | {"headers": {}, "context": {}},
            operation_name="connect",
            expires_in=int(AWS_SECONDS),
            region_name=region,
        )
        token = signed.removeprefix("https://")
        return Credentials(self.username, token, now + AWS_SECONDS, AWS_CONNECTED_SECONDS)


@dataclasses.dataclass(frozen=True, slots=True)
class FromEntra(Source):
    """A token of Microsoft Entra ID: of a service principal if there is a secret, else of the identity of
    this machine. The user is the identity's object id, if none is given."""

    tenant: str = ""
    client_id: str = ""  # of the service principal, or of an identity that was assigned to this machine
    client_secret: str = dataclasses.field(default="", repr=False)

    needs = ("redis_entraid", "azure")

    @property
    def shown(self) -> str:
        return f"Microsoft Entra ID, {self.client_id or 'the identity of this machine'}"

    async def fetch(self, seconds: float) -> Credentials:
        return await _of_library(lambda: self._fetch(seconds), seconds, "Azure")

    def _fetch(self, seconds: float) -> Credentials:
        msal, providers = _library("msal"), _library("redis_entraid.identity_provider")
        if self.client_secret:
            application = msal.ConfidentialClientApplication(
                self.client_id,
                client_credential=self.client_secret,
                authority=f"{AZURE_LOGIN}/{self.tenant}",
                timeout=seconds,
            )
            provider = providers.ServicePrincipalProvider(application, [f"{AZURE_RESOURCE}.default"])
        else:
            with _library("requests").Session() as http:
                if self.client_id:
                    identity = msal.UserAssignedManagedIdentity(client_id=self.client_id)
                else:
                    identity = msal.SystemAssignedManagedIdentity()
                application = msal.ManagedIdentityClient(identity, http_client=http)
                provider = providers.ManagedIdentityProvider(application, AZURE_RESOURCE)
                return self._of_token(provider.request_token())
        return self._of_token(provider.request_token())

    def _of_token(self, token: Any) -> Credentials:
        user = self.username or token.try_get("oid")
        if not isinstance(user, str) or not user:
            raise NoCredentials("the token names no object id; write it as the username")
        return Credentials(user, token.get_value(), token.get_expires_at_ms() / 1000)


@dataclasses.dataclass(frozen=True, slots=True)
class FromGoogle(Source):
    """An access token of Google Cloud, of the account that this machine's environment names."""

    needs = ("google.auth", "gcp")

    @property
    def shown(self) -> str:
        return "Google Cloud IAM"

    async def fetch(self, seconds: float) -> Credentials:
        return await _of_library(lambda: self._fetch(seconds), seconds, "Google Cloud")

    def _fetch(self, seconds: float) -> Credentials:
        ask = _library("google.auth.transport.requests").Request()

        def in_time(*arguments: Any, **options: Any) -> Any:
            return ask(*arguments, **options | {"timeout": seconds})

        account, _ = _library("google.auth").default(scopes=[GOOGLE_SCOPE], request=in_time)
        account.refresh(in_time)
        expires_at = None if account.expiry is None else float(calendar.timegm(account.expiry.utctimetuple()))
        # Google Cloud lets connections stay whose token has ended.
        return Credentials(self.username, account.token, expires_at, math.inf)


def missing(source: Source) -> str:
    """What has to be installed for a source, as a sentence; "": nothing."""
    package, extra = getattr(source, "needs", ("", ""))
    if not package:
        return ""
    try:
        is_there = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it
        is_there = False
    name = package.replace("_", "-").replace(".", "-")
    return "" if is_there else f"this needs the package {name}; pip install keyfence[{extra}]"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise NoCredentials(f"a library cannot be used: {exc}") from None


async def _of_library(work: Callable[[], _T], seconds: float, name: str) -> _T:
    """The result of this work in a thread. Raises NoCredentials, or TimeoutError."""
    async with asyncio.timeout(seconds):
        try:
            return await _in_thread(work)
        except (NoCredentials, TimeoutError):
            raise
        except Exception as exc:
            why = f"the library of {name} has failed ({type(exc).__name__})"
            raise NoCredentials(why, " ".join(str(exc).split())) from None


async def _in_thread(work: Callable[[], _T]) -> _T:
    """The result of this work in a thread of its own, which does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_T] = loop.create_future()

    def settle(value: _T | None, fault: Exception | None) -> None:
        if result.done():
            return  # nobody waits any more
        if fault is not None:
            result.set_exception(fault)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, fault = None, None
        try:
            value = work()
        except Exception as exc:
            fault = exc
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, fault)

    threading.Thread(target=run, name="credentials", daemon=True).start()
    return await result
