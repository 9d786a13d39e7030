"""A client for Azure Resource Manager: one request, one response, no retries."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from azure.core.exceptions import ClientAuthenticationError
from azure.core.pipeline.policies import RequestIdPolicy, UserAgentPolicy
from azure.core.pipeline.transport import AioHttpTransport
from azure.core.rest import AsyncHttpResponse, HttpRequest
from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential
from azure.mgmt.core import AsyncARMPipelineClient
from azure.mgmt.core.policies import AsyncARMChallengeAuthenticationPolicy

from unwind.api.names import MEMO_ANNOTATION, Reason
from unwind.deleters.outcomes import PermanentError, TransientError
from unwind.errors import UnwindError
from unwind.external.azure.arm_responses import ArmReply, displayed_text
from unwind.external.azure.credentials import identity_of
from unwind.kube import fencing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from azure.core.credentials_async import AsyncTokenCredential

PUBLIC = "https://management.azure.com"
# Azure Service Operator's own names for them. azure-identity reads the settings of the identity: AZURE_TENANT_ID,
# AZURE_CLIENT_ID, AZURE_AUTHORITY_HOST and so on.
ENDPOINT_VARIABLE = "AZURE_RESOURCE_MANAGER_ENDPOINT"
AUDIENCE_VARIABLE = "AZURE_RESOURCE_MANAGER_AUDIENCE"
# Timeout for a token and a response together.
DEADLINE = 60.0
_PLAIN = "/-._~!$&'()*+,;=:@"


class ArmClient:
    """Sends requests to Azure Resource Manager with one identity. Every call ends, with a response or an error."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        credential: AsyncTokenCredential,
        *,
        endpoint: str = PUBLIC,
        audience: str = "",
        deadline: float = DEADLINE,
        subscription: str = "",
    ) -> None:
        """The session and the credential belong to the caller. `subscription`: send no request about resources outside
        this subscription."""
        self.endpoint = endpoint.rstrip("/")
        self._origin = _origin(self.endpoint)
        if self._origin is None:
            raise UnwindError(f"invalid Azure Resource Manager endpoint {endpoint!r}", remedy="use one with https://")
        self._deadline = deadline
        self._subscription = subscription
        scope = f"{(audience or self.endpoint).rstrip('/')}/.default"
        # No policies that retry, follow redirects or log: the chain retries, a redirect would send the token elsewhere,
        # and the URLs of operations contain signatures.
        self._client: AsyncARMPipelineClient[HttpRequest, AsyncHttpResponse] = AsyncARMPipelineClient(
            self.endpoint,
            policies=[
                RequestIdPolicy(),
                UserAgentPolicy(base_user_agent="unwind"),
                AsyncARMChallengeAuthenticationPolicy(credential, scope),
            ],
            transport=AioHttpTransport(session=session, session_owner=False),
        )

    async def get(self, path: str, *, api_version: str) -> ArmReply:
        return await self._send("GET", self._url(path, api_version, {}))

    async def delete(
        self,
        path: str,
        *,
        api_version: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ArmReply:
        return await self._send("DELETE", self._url(path, api_version, query or {}), headers)

    async def post(self, path: str, *, api_version: str) -> ArmReply:
        return await self._send("POST", self._url(path, api_version, {}))

    def reaches(self, url: str) -> bool:
        """Whether a URL belongs to this server. No other server ever gets a token."""
        return _origin(url) == self._origin

    async def poll(self, url: str) -> ArmReply:
        """Request the state of an operation. Raises PermanentError if the URL belongs to another server."""
        if not self.reaches(url):
            # The URL was stored on an object, and a user who can write to that could have the token sent to their own
            # server.
            raise PermanentError(
                f"cannot poll the operation at {displayed_text(url.partition('?')[0])!r}: "
                f"it is not at {self.endpoint}, so no token is sent there",
                reason=Reason.HELD,
                remedy=f"find out who changed its annotations {MEMO_ANNOTATION}*, and remove them to start over",
            )
        return await self._send("GET", url)

    def _url(self, path: str, api_version: str, query: Mapping[str, str]) -> str:
        if self._subscription and not f"{path}/".lower().startswith(f"/subscriptions/{self._subscription}/".lower()):
            raise PermanentError(
                f"cannot access {displayed_text(path)!r}: the credentials are limited to subscription"
                f" {self._subscription}",
                reason=Reason.HELD,
                remedy="correct the ARM id, or map credentials for its subscription",
            )
        asked = urlencode({"api-version": api_version, **query})
        return f"{self.endpoint}{quote(path, safe=_PLAIN)}?{asked}"

    async def _send(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> ArmReply:
        if method != "GET":
            fencing.check_fence()
        request = HttpRequest(method, url, headers={"Accept": "application/json", **(headers or {})})
        what = f"{method} {urlsplit(url).path}"
        try:
            async with asyncio.timeout(self._deadline):
                response = await self._client.send_request(request)
        except ClientAuthenticationError as error:
            raise _unauthenticated(error) from None
        except Exception as error:  # noqa: BLE001 - azure-identity raises whatever a page in place of a token leads to
            # Whether the request arrived is unknown. The error text may contain the URL; its type is enough.
            raise TransientError(
                f"{what}: no response from {urlsplit(self.endpoint).netloc} ({type(error).__name__})",
                reason=Reason.UNREACHABLE,
                remedy="will retry; check the connection from the manager to Azure",
            ) from None
        found = {name.lower(): value for name, value in response.headers.items()}
        return ArmReply(response.status_code, found, response.content)


@asynccontextmanager
async def connected(environ: Mapping[str, str] = os.environ) -> AsyncIterator[ArmClient]:
    """A client with the cloud and the identity that the AZURE_* variables configure."""
    # Azure's libraries log some twenty lines per token.
    logging.getLogger("azure").setLevel(logging.WARNING)
    async with session() as shared:
        transport = AioHttpTransport(session=shared, session_owner=False)
        async with DefaultAzureCredential(transport=transport) as credential:
            yield ArmClient(
                shared,
                credential,
                endpoint=environ.get(ENDPOINT_VARIABLE) or PUBLIC,
                audience=environ.get(AUDIENCE_VARIABLE, ""),
            )


@asynccontextmanager
async def connected_with(
    values: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> AsyncIterator[ArmClient]:
    """A client with the identity in a Secret (`credentials.identity_of`). AZURE_SUBSCRIPTION_ID limits it to one
    subscription. The cloud is the manager's."""
    logging.getLogger("azure").setLevel(logging.WARNING)
    identity = identity_of(values)
    async with session() as shared:
        transport = AioHttpTransport(session=shared, session_owner=False)
        async with ClientSecretCredential(*identity, transport=transport) as credential:
            yield ArmClient(
                shared,
                credential,
                endpoint=environ.get(ENDPOINT_VARIABLE) or PUBLIC,
                audience=environ.get(AUDIENCE_VARIABLE, ""),
                subscription=values.get("AZURE_SUBSCRIPTION_ID", ""),
            )


@asynccontextmanager
async def session(*, authorities: bytes = b"", proxies: bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections that trust these CA certificates (PEM); by default the system's, or those in SSL_CERT_FILE.

    `proxies`: whether to use HTTPS_PROXY.
    """
    # It reads files: not on the event loop.
    context = await asyncio.to_thread(ssl.create_default_context, cadata=authorities.decode() or None)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # azure-core does it
        trust_env=proxies,
    ) as shared:
        yield shared


def _origin(url: str) -> tuple[str, int] | None:
    """Host and port of an https URL; None for any other URL, and for one with a user."""
    try:
        parts = urlsplit(url)
        if parts.scheme.lower() != "https" or not parts.hostname or parts.username is not None:
            return None
        # Some parsers treat a backslash as a slash, others do not: they would disagree on the host.
        return None if "\\" in url else (parts.hostname.lower(), parts.port or 443)
    except ValueError:
        return None


def _unauthenticated(error: ClientAuthenticationError) -> TransientError:
    # Only the error number is reported: some of Entra's texts quote what they were sent.
    number = re.search(r"AADSTS\d+", str(error.message))
    return TransientError(
        f"cannot get a token for Azure ({number.group() if number else type(error).__name__})",
        reason=Reason.UNAUTHENTICATED,
        remedy="check the identity in the AZURE_* variables, and that its secret has not expired",
    )
