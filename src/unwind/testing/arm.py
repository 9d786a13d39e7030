"""A fake of Azure Resource Manager and Entra: real HTTPS on loopback, with failures on demand.

    async with Arm() as arm:
        arm.resource(id, takes=3)
        ...
        assert arm.sent("DELETE") == [id]

It has resources by id, long-running deletions of both styles, locks, throttling, soft-deleted Key Vaults, cancelled
subscriptions, API Management products, and tokens that expire. It records every request in order.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Callable
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec
from aiohttp import web

from unwind.certificates import Authority

# Contents of the Azure fake: resources, deleted vaults, subscriptions.


class Style(Enum):
    """The style in which a long-running operation tells its URL."""

    STATUS = "Azure-AsyncOperation"
    LOCATION = "Location"
    NOWHERE = ""


class ArmOperation(msgspec.Struct, kw_only=True):
    """A long-running operation."""

    path: str
    style: Style
    left: int
    """The number of polls that still find it running."""
    finish: Callable[[], str]
    """Called when it finishes; returns an error code, or an empty string."""
    outcome: str | None = None

    def go_on(self) -> bool:
        """Advance it by one poll; returns whether it is done."""
        if self.left:
            self.left -= 1
            return False
        if self.outcome is None:
            self.outcome = self.finish()
        return True


class Vault(msgspec.Struct, kw_only=True):
    """A soft-deleted Key Vault."""

    id: str
    location: str
    protected: bool = False
    takes: int = 0
    unlisted: int = 0
    purge_date: str = "2026-04-01T00:00:00Z"

    @property
    def path(self) -> str:
        _, _, subscription, *_, name = self.id.lower().split("/")
        return (
            f"/subscriptions/{subscription}/providers/microsoft.keyvault/locations/{self.location}/deletedvaults/{name}"
        )

    @property
    def properties(self) -> dict[str, Any]:
        return {
            "vaultId": self.id,
            "location": self.location,
            "scheduledPurgeDate": self.purge_date,
            "purgeProtectionEnabled": self.protected or None,
        }


class ArmResource(msgspec.Struct, kw_only=True):
    """A resource, and how its deletion behaves."""

    id: str
    takes: int = 0
    style: Style = Style.STATUS
    fails: str = ""
    lingers: int = 0
    keys: int = 0
    location: str = "westeurope"
    properties: dict[str, Any] = {}
    vault: Vault | None = None
    locked: bool = False
    """Whether it is locked; tests set and clear it."""
    deleting: bool = False
    operation: ArmOperation | None = None
    over: bool = False


class ArmSubscription(msgspec.Struct, kw_only=True):
    """A subscription, and whether it is Enabled."""

    id: str
    state: str = "Enabled"


TENANT = "11111111-1111-1111-1111-111111111111"
CLIENT = "22222222-2222-2222-2222-222222222222"
SECRET = "not-so-secret"  # noqa: S105 - of the stand-in only


class ArmRequest(msgspec.Struct, frozen=True):
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    token: str
    """The token in the request; empty if none."""


class Failure(msgspec.Struct, kw_only=True):
    """A scripted failure, for a number of requests."""

    status: int
    code: str
    method: str
    path: str
    times: int
    message: str
    headers: dict[str, str]
    page: str
    """If set, it is returned as it is, as by a proxy."""


class Arm:
    """A fake of Azure for deletions; use it as an async context manager."""

    def __init__(self, *, token_lifetime: int = 3600, retry_after: int | None = 0) -> None:
        """`retry_after`: the header of every 202; None omits it."""
        self.token_lifetime = token_lifetime
        self.retry_after = retry_after
        self.requests: list[ArmRequest] = []
        self.resources: dict[str, ArmResource] = {}
        self.deleted_vaults: dict[str, Vault] = {}
        self.subscriptions: dict[str, ArmSubscription] = {}
        self.secret = SECRET
        self.signature = "signature"
        """Suffix of the URLs of operations; at Azure, up to some thousand characters."""
        self.tokens_given = 0
        self._valid: set[str] = set()
        self._challenge = ""
        self._failures: list[Failure] = []
        self._operations: dict[str, ArmOperation] = {}
        self._numbers = count(1)
        self._authority = Authority("azure-stand-in")
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        pair = self._authority.server("azure", hosts=["127.0.0.1", "localhost"])
        app = web.Application(client_max_size=1 << 16)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        context = await asyncio.to_thread(_context, pair.certificate, pair.key)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._runner:
            await self._runner.cleanup()

    # Contents

    @property
    def certificate(self) -> bytes:
        """Its CA certificate, as PEM."""
        return self._authority.certificate

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that lead Azure's SDKs to it."""
        return {
            "AZURE_TENANT_ID": TENANT,
            "AZURE_CLIENT_ID": CLIENT,
            "AZURE_CLIENT_SECRET": SECRET,
            "AZURE_AUTHORITY_HOST": self.url,
            "AZURE_RESOURCE_MANAGER_ENDPOINT": self.url,
        }

    def resource(
        self,
        id: str,  # noqa: A002 - what Azure calls it
        *,
        takes: int = 0,
        style: Style = Style.STATUS,
        fails: str = "",
        lingers: int = 0,
        properties: dict[str, Any] | None = None,
        keys: int = 0,
    ) -> ArmResource:
        """Add a resource. Its deletion `takes` so many polls and, with `fails`, fails once with this code.

        `lingers`: so many GETs still return it after its deletion is done. `keys`: a product has so many subscriptions.
        """
        made = ArmResource(
            id=id, takes=takes, style=style, fails=fails, lingers=lingers, keys=keys, properties=properties or {}
        )
        self.resources[id.lower()] = made
        return made

    def vault(
        self,
        id: str,  # noqa: A002
        *,
        location: str = "westeurope",
        purge_protection: bool = False,
        purge_takes: int = 0,
        unlisted: int = 0,
        takes: int = 0,
    ) -> ArmResource:
        """Add a Key Vault. It is soft-deleted; `unlisted`: so many GETs do not return the deleted vault yet."""
        made = self.resource(id, takes=takes)
        made.location = location
        made.vault = Vault(id=id, location=location, protected=purge_protection, takes=purge_takes, unlisted=unlisted)
        return made

    def subscription(self, id: str, *, state: str = "Enabled") -> ArmSubscription:  # noqa: A002
        """Add a subscription."""
        made = self.subscriptions[id.lower()] = ArmSubscription(id=id, state=state)
        return made

    def sent(self, method: str) -> list[str]:
        """The requested paths with a method, in order; without those of Entra."""
        return [
            request.path for request in self.requests if request.method == method and "/oauth2/" not in request.path
        ]

    # Failures

    def fail_next(
        self,
        status: int,
        code: str = "",
        *,
        method: str = "",
        path: str = "",
        times: int = 1,
        retry_after: int | None = None,
        message: str = "scripted failure",
        page: str = "",
    ) -> None:
        """Fail the next requests with this method and this text in their path. `page`: respond as a proxy would.

        Requests to Entra are included only if `path` matches them.
        """
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self._failures.append(
            Failure(
                status=status,
                code=code,
                method=method,
                path=path,
                times=times,
                message=message,
                headers=headers,
                page=page,
            )
        )

    def mend(self) -> None:
        """Remove all scripted failures."""
        self._failures.clear()

    def expire_tokens(self, *, challenge: bool = True) -> None:
        """Reject every token issued so far, with or without a challenge for a new one."""
        self._valid.clear()
        claims = "eyJhY2Nlc3NfdG9rZW4iOnsibmJmIjp7ImVzc2VudGlhbCI6dHJ1ZSwidmFsdWUiOiIxIn19fQ"
        revoked = f'Bearer error="insufficient_claims", claims="{claims}"'
        self._challenge = revoked if challenge else 'Bearer error="invalid_token"'

    def forget_operations(self) -> None:
        """Forget all operations; they finish at once, but can no longer be polled."""
        for operation in self._operations.values():
            operation.left = 0
            operation.go_on()
        self._operations.clear()

    # The server

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.requests.append(ArmRequest(request.method, path, dict(request.query), bearer))
        for failure in self._failures:
            meant = failure.path.lower() in path.lower() and ("/oauth2/" in failure.path or "/oauth2/" not in path)
            if failure.times and meant and failure.method in ("", request.method):
                failure.times -= 1
                if failure.page:
                    return web.Response(status=failure.status, text=failure.page, content_type="text/html")
                return _error(failure.status, failure.code, failure.message, **failure.headers)
        if path.endswith("/oauth2/v2.0/token"):
            return await self._token(request)
        if bearer not in self._valid:
            return _error(401, "ExpiredAuthenticationToken", "no good token", **{"WWW-Authenticate": self._challenge})
        if path.startswith("/operations/"):
            return self._poll(path)
        if "api-version" not in request.query:
            return _error(400, "MissingApiVersionParameter", "The api-version query parameter is required.")
        return self._serve(request.method, path, dict(request.query))

    def _serve(self, method: str, path: str, query: dict[str, str]) -> web.Response:
        parts = path.lower().strip("/").split("/")
        if parts[0] == "subscriptions" and len(parts) == 2 and method == "GET":
            found = self.subscriptions.get(parts[1])
            return _json({"state": found.state}) if found else _error(404, "SubscriptionNotFound", parts[1])
        if parts[-1] == "cancel" and method == "POST":
            return self._cancel(parts[1])
        if "deletedvaults" in parts:
            return self._deleted(method, "/" + "/".join(parts[: parts.index("deletedvaults") + 2]), parts[-1])
        resource = self.resources.get(path.lower())
        if resource is None:
            return _error(404, "ResourceNotFound", f"The Resource '{path}' was not found.")
        if method == "GET":
            return self._show(resource)
        return self._delete(resource, query) if method == "DELETE" else _error(405, "MethodNotAllowed", method)

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT, self.secret):
            return _json({"error": "invalid_client", "error_description": "AADSTS7000215: Invalid secret."}, 401)
        self.tokens_given += 1
        token = f"token-{self.tokens_given}"
        self._valid.add(token)
        return _json({"token_type": "Bearer", "expires_in": self.token_lifetime, "access_token": token})

    def _show(self, resource: ArmResource) -> web.Response:
        if resource.operation:
            resource.operation.go_on()  # every GET advances it
        if resource.over:
            # Azure's own caches: a deleted resource is still visible for a while.
            resource.lingers -= 1
            if resource.lingers < 0:
                self.resources.pop(resource.id.lower(), None)
                return _error(404, "ResourceNotFound", resource.id)
        state = {"provisioningState": "Deleting"} if resource.deleting else {}
        return _json({"id": resource.id, "location": resource.location, "properties": {**resource.properties, **state}})

    def _delete(self, resource: ArmResource, query: dict[str, str]) -> web.Response:
        if resource.locked:
            return _error(409, "ScopeLocked", f"The scope '{resource.id}' cannot perform delete: it is locked.")
        if resource.keys and query.get("deleteSubscriptions") != "true":
            return _error(400, "ValidationError", "Cannot delete product because it has subscriptions.")
        if resource.deleting:
            return _error(409, "AnotherOperationInProgress", "It is being deleted.")
        if resource.takes or resource.fails:
            resource.deleting = True
            resource.operation = self._begin(resource.style, resource.takes, lambda: self._gone(resource))
            return self._accepted(resource.operation)
        self._gone(resource)
        return web.Response(status=200, headers=_signs())

    def _gone(self, resource: ArmResource) -> str:
        resource.deleting = False
        if resource.fails:
            code, resource.fails = resource.fails, ""
            return code
        resource.over = True
        if not resource.lingers:
            self.resources.pop(resource.id.lower(), None)
        if resource.vault:
            self.deleted_vaults[resource.vault.path] = resource.vault
        return ""

    def _deleted(self, method: str, path: str, last: str) -> web.Response:
        vault = self.deleted_vaults.get(path)
        if vault is None or vault.unlisted > 0:
            if vault:
                vault.unlisted -= 1
            return _error(404, "DeletedVaultNotFound", f"{path} does not exist.")
        if method == "GET":
            return _json({"properties": vault.properties})
        if last != "purge" or method != "POST":
            return _error(405, "MethodNotAllowed", method)
        if vault.protected:
            return _error(403, "MethodNotAllowed", "Operation 'DeletedVaultPurge' is not allowed: purge protection.")

        def purge() -> str:
            self.deleted_vaults.pop(path, None)
            return ""

        return self._accepted(self._begin(Style.LOCATION, vault.takes, purge))

    def _cancel(self, subscription: str) -> web.Response:
        found = self.subscriptions.get(subscription)
        if found is None:
            return _error(404, "SubscriptionNotFound", subscription)
        if found.state != "Enabled":
            return _error(409, "SubscriptionNotActive", "The subscription is not active.")
        found.state = "Disabled"
        return _json({"subscriptionId": found.id})

    def _begin(self, style: Style, polls: int, finish: Callable[[], str]) -> ArmOperation:
        path = f"/operations/{next(self._numbers)}"
        made = self._operations[path] = ArmOperation(path=path, style=style, left=polls, finish=finish)
        return made

    def _accepted(self, operation: ArmOperation) -> web.Response:
        headers = {**_signs(), **self._patience()}
        if operation.style is not Style.NOWHERE:
            headers[operation.style.value] = f"{self.url}{operation.path}?api-version=2020-01-01&t=1&s={self.signature}"
        return web.Response(status=202, headers=headers)

    def _poll(self, path: str) -> web.Response:
        operation = self._operations.get(path)
        if operation is None:
            return _error(404, "OperationNotFound", "unknown operation")
        located = operation.style is Style.LOCATION
        if not operation.go_on():
            return self._accepted(operation) if located else _json({"status": "InProgress"}, 200, **self._patience())
        if operation.outcome:
            return _json({"status": "Failed", "error": {"code": operation.outcome, "message": "scripted failure"}})
        return web.Response(status=204, headers=_signs()) if located else _json({"status": "Succeeded"})

    def _patience(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def _signs() -> dict[str, str]:
    return {"x-ms-request-id": "stand-in", "x-ms-correlation-request-id": "stand-in"}


def _json(body: dict[str, Any], status: int = 200, /, **headers: str) -> web.Response:
    return web.json_response(body, status=status, headers={**_signs(), **headers})


def _error(status: int, code: str, message: str, **headers: str) -> web.Response:
    return _json({"error": {"code": code, "message": message}}, status, **headers)


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        # OpenSSL reads them only from files.
        chain = Path(folder) / "chain.pem"
        chain.write_bytes(certificate + key)
        context.load_cert_chain(chain)
    return context
