"""A client of Azure Resource Manager: one request, one answer. When to try again is not decided here."""

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
from azure.identity.aio import DefaultAzureCredential
from azure.mgmt.core import AsyncARMPipelineClient
from azure.mgmt.core.policies import AsyncARMChallengeAuthenticationPolicy

from unwind.api.names import Reason
from unwind.azure.answers import Reply, shown
from unwind.deleting.outcomes import PermanentError, TransientError
from unwind.errors import UnwindError
from unwind.kube import fencing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from azure.core.credentials_async import AsyncTokenCredential

PUBLIC = "https://management.azure.com"
# Azure Service Operator's own names for them; what identities go by is read by azure-identity: AZURE_TENANT_ID,
# AZURE_CLIENT_ID, AZURE_AUTHORITY_HOST and so on.
ENDPOINT_VARIABLE = "AZURE_RESOURCE_MANAGER_ENDPOINT"
AUDIENCE_VARIABLE = "AZURE_RESOURCE_MANAGER_AUDIENCE"
# For a token and an answer together: a server that never answers is not waited for.
DEADLINE = 60.0
_PLAIN = "/-._~!$&'()*+,;=:@"


class ArmClient:
    """Asks Azure Resource Manager, in the name of one identity. Every call ends: with an answer, or an error."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        credential: AsyncTokenCredential,
        *,
        endpoint: str = PUBLIC,
        audience: str = "",
        deadline: float = DEADLINE,
    ) -> None:
        """The session and the credential belong to the caller."""
        self.endpoint = endpoint.rstrip("/")
        self._origin = _origin(self.endpoint)
        if self._origin is None:
            raise UnwindError(f"{endpoint!r} is no address of Azure Resource Manager", remedy="give one with https://")
        self._deadline = deadline
        scope = f"{(audience or self.endpoint).rstrip('/')}/.default"
        # No policy that tries again, that follows a redirect, or that writes to the log: the first is the chain's
        # business, the second would carry the token elsewhere, and in URLs of operations there are signatures.
        self._client: AsyncARMPipelineClient[HttpRequest, AsyncHttpResponse] = AsyncARMPipelineClient(
            self.endpoint,
            policies=[
                RequestIdPolicy(),
                UserAgentPolicy(base_user_agent="unwind"),
                AsyncARMChallengeAuthenticationPolicy(credential, scope),
            ],
            transport=AioHttpTransport(session=session, session_owner=False),
        )

    async def get(self, path: str, *, api_version: str) -> Reply:
        return await self._send("GET", self._url(path, api_version, {}))

    async def delete(
        self,
        path: str,
        *,
        api_version: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        return await self._send("DELETE", self._url(path, api_version, query or {}), headers)

    async def post(self, path: str, *, api_version: str) -> Reply:
        return await self._send("POST", self._url(path, api_version, {}))

    def reaches(self, url: str) -> bool:
        """Whether a URL is one of this server's. Nothing else ever gets a token."""
        return _origin(url) == self._origin

    async def poll(self, url: str) -> Reply:
        """Ask how an operation goes on. Raises PermanentError if the URL leads elsewhere."""
        if not self.reaches(url):
            # It was kept on an object, and whoever may write to that could have it sent to themselves.
            raise PermanentError(
                f"an operation is to be asked for at {shown(url.partition('?')[0])!r}, "
                f"which is not at {self.endpoint}, so no token is sent there",
                reason=Reason.HELD,
                remedy="find out who changed the object's memo, and take the annotation away",
            )
        return await self._send("GET", url)

    def _url(self, path: str, api_version: str, query: Mapping[str, str]) -> str:
        asked = urlencode({"api-version": api_version, **query})
        return f"{self.endpoint}{quote(path, safe=_PLAIN)}?{asked}"

    async def _send(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> Reply:
        if method != "GET":
            fencing.check()
        request = HttpRequest(method, url, headers={"Accept": "application/json", **(headers or {})})
        what = f"{method} {urlsplit(url).path}"
        try:
            async with asyncio.timeout(self._deadline):
                response = await self._client.send_request(request)
        except ClientAuthenticationError as error:
            raise _unauthenticated(error) from None
        except Exception as error:  # noqa: BLE001 - azure-identity raises whatever a page in place of a token leads to
            # Whether the request got there is not known. What the error says may quote the URL; its name is enough.
            raise TransientError(
                f"{what}: no answer from {urlsplit(self.endpoint).netloc} ({type(error).__name__})",
                reason=Reason.UNREACHABLE,
            ) from None
        found = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status_code, found, response.content)


@asynccontextmanager
async def connected(environ: Mapping[str, str] = os.environ) -> AsyncIterator[ArmClient]:
    """A client for the cloud, and with the identity, that the AZURE_* variables name."""
    # Azure's libraries write some twenty lines for each token that is fetched.
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
async def session(*, authorities: bytes = b"", proxies: bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections that trust these authorities (PEM); by default the system's, or those in SSL_CERT_FILE.

    `proxies`: whether they go by way of what HTTPS_PROXY names.
    """
    # It reads files: not on the loop.
    context = await asyncio.to_thread(ssl.create_default_context, cadata=authorities.decode() or None)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # azure-core does it
        trust_env=proxies,
    ) as shared:
        yield shared


def _origin(url: str) -> tuple[str, int] | None:
    """Host and port of an https URL; None for every other, and for one with a user in it."""
    try:
        parts = urlsplit(url)
        if parts.scheme.lower() != "https" or not parts.hostname or parts.username is not None:
            return None
        # A backslash is a slash to some and a letter to others: then the host is not the same to all.
        return None if "\\" in url else (parts.hostname.lower(), parts.port or 443)
    except ValueError:
        return None


def _unauthenticated(error: ClientAuthenticationError) -> TransientError:
    # Only the number of the error is told: some of Entra's texts quote what they were sent.
    number = re.search(r"AADSTS\d+", str(error.message))
    return TransientError(
        f"there is no token for Azure ({number.group() if number else type(error).__name__})",
        reason=Reason.UNAUTHENTICATED,
        remedy="see whether the identity that the AZURE_* variables name is there, and its secret still good",
    )
