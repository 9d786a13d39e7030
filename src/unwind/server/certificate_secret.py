"""Serving certificates that Unwind creates and renews, in a Secret that all replicas share.

A CA signs the serving certificate. Callers verify against the CA bundle: every CA that is still valid. A new CA is
first added to the bundle, and signs only after all callers had time to receive it; the old CA stays in the bundle until
it expires. So the served certificate can be verified by every caller at any time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime as dt
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from unwind import logs
from unwind.api import names
from unwind.api.resources import SECRETS
from unwind.certificates import CLOCK_SKEW, Authority, KeyPair, certificate_pem
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube.errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError
from unwind.kube.object_watch import backoff, follow
from unwind.server.manager_names import CERTIFICATE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from unwind.clock import Clock
    from unwind.kube.client import Client, Object


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Lifetimes. Each certificate is renewed after two thirds of its lifetime."""

    authority: dt.timedelta = dt.timedelta(days=730)
    server: dt.timedelta = dt.timedelta(days=90)
    """Less than a third of the CA's lifetime, so that it is signed by the next CA before the old one expires."""
    overlap: dt.timedelta = dt.timedelta(hours=1)
    """How long a new CA is only in the bundle before it signs."""


class StoredCertificates(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas share in the Secret."""

    server: KeyPair
    authority: KeyPair
    """The newest CA, which signs."""
    bundle: bytes
    """The CA bundle: all valid CAs, the newest first."""


def renewed(
    kept: StoredCertificates | None, *, hosts: Sequence[str], terms: Terms, now: dt.datetime
) -> StoredCertificates:
    """What to store from now on: the same value if nothing is due.

    Missing or unusable certificates are created. The certificate covers these hosts and those that it covered before,
    because replicas that are called by different names share it.
    """
    facts = _facts(kept)
    if kept is None or facts is None:
        authority = _new_authority(terms, now)
        server = _sign(authority, hosts, terms, now)
        return StoredCertificates(server=server, authority=authority.pair, bundle=authority.certificate)
    authority = Authority.kept(kept.authority)
    bundle = [item for item in facts.bundle if item.not_valid_after_utc > now]
    signs_from = _signs_from(facts.authority, bundle, terms)
    if now >= _due(facts.authority):
        authority = _new_authority(terms, now)
        newest = x509.load_pem_x509_certificate(authority.certificate)
        bundle.insert(0, newest)
        signs_from = _signs_from(newest, bundle, terms)
    server = kept.server
    wanted = sorted({*hosts, *facts.hosts})
    useless = now >= facts.server.not_valid_after_utc or not any(_signed(facts.server, by=item) for item in bundle)
    if useless or ((now >= _due(facts.server) or wanted != sorted(facts.hosts)) and now >= signs_from):
        server = _sign(authority, wanted, terms, now)
    return StoredCertificates(
        server=server, authority=authority.pair, bundle=b"".join(certificate_pem(item) for item in bundle)
    )


def next_look(kept: StoredCertificates, *, hosts: Sequence[str], terms: Terms) -> dt.datetime:
    """When `renewed` will next have something to change."""
    facts = _facts(kept)
    if facts is None:
        return dt.datetime.min.replace(tzinfo=dt.UTC)
    wants_hosts = not set(hosts) <= set(facts.hosts)
    server = dt.datetime.min.replace(tzinfo=dt.UTC) if wants_hosts else _due(facts.server)
    return min(
        _due(facts.authority),
        max(server, _signs_from(facts.authority, facts.bundle, terms)),
        *(item.not_valid_after_utc for item in facts.bundle),
    )


class _Facts(msgspec.Struct, frozen=True):
    server: x509.Certificate
    authority: x509.Certificate
    bundle: list[x509.Certificate]
    hosts: list[str]


def _facts(kept: StoredCertificates | None) -> _Facts | None:
    """The parsed certificates; None if something is missing, invalid or inconsistent."""
    if kept is None:
        return None
    try:
        server = x509.load_pem_x509_certificate(kept.server.certificate)
        authority = x509.load_pem_x509_certificate(kept.authority.certificate)
        bundle = x509.load_pem_x509_certificates(kept.bundle)
        Authority.kept(kept.authority)
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        kept.server.check()
    except (ValueError, x509.ExtensionNotFound):
        return None
    if authority not in bundle:
        return None
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return _Facts(server, authority, bundle, hosts)


def _new_authority(terms: Terms, now: dt.datetime) -> Authority:
    # A unique name per CA: clients with several trusted CAs select the right one by name.
    return Authority(f"unwind-serving@{now:%Y%m%dT%H%M%S%f}", lifetime=terms.authority, now=now)


def _sign(authority: Authority, hosts: Sequence[str], terms: Terms, now: dt.datetime) -> KeyPair:
    ends = x509.load_pem_x509_certificate(authority.certificate).not_valid_after_utc
    return authority.server("unwind", hosts=sorted(set(hosts)), lifetime=min(terms.server, ends - now), now=now)


def _signs_from(authority: x509.Certificate, bundle: Sequence[x509.Certificate], terms: Terms) -> dt.datetime:
    """When the CA may start to sign; a single CA may sign at once."""
    return _made(authority) + (terms.overlap if len(bundle) > 1 else dt.timedelta())


def _made(certificate: x509.Certificate) -> dt.datetime:
    return certificate.not_valid_before_utc + CLOCK_SKEW


def _due(certificate: x509.Certificate) -> dt.datetime:
    return _made(certificate) + (certificate.not_valid_after_utc - _made(certificate)) * 2 / 3


def _signed(certificate: x509.Certificate, *, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


# The serving certificate that Unwind creates and renews, in a Secret that all replicas share.
#
# The Secret holds the serving certificate with its key (`tls.crt`, `tls.key`), the CA bundle (`ca.crt`, which Cluster
# API's inject-ca-from-secret reads too) and the key of the CA (`ca.key`). The CA key is in the same Secret because it
# needs no more protection: a reader of `tls.key` can already impersonate us.
#
# Replicas do not talk to each other. Each checks when something is due and writes it by compare-and-swap; a replica
# that is late uses what the other wrote.

log = logs.get(__name__)

NAME = CERTIFICATE
# Limits the delay of a renewal to a day if the clock was changed or the machine slept.
_LONGEST_WAIT = 86400.0
_SHORTEST_WAIT = 1.0


class SharedCertificate:
    """The certificate in the Secret: created if missing, renewed in time, reloaded when others change it.

    A Secret without our label belongs to another system (such as cert-manager): it is used but never written.
    """

    name = "certificate"
    ready = True

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        hosts: Sequence[str],
        terms: Terms = Terms(),  # noqa: B008 - frozen
        clock: Clock = SYSTEM,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._hosts = hosts
        self._terms = terms
        self._clock = clock
        self._shown: tuple[KeyPair, bytes] | None = None
        self._kept: StoredCertificates | None = None
        self._use: Callable[[KeyPair, bytes], Awaitable[None]] | None = None

    async def obtain(self) -> tuple[KeyPair, bytes]:
        """The certificate at startup, and its CA bundle. Raises UnwindError."""
        self._shown = _readable(await self._settle(await self._read()))
        if self._shown is None:
            raise UnwindError(
                f"cannot use Secret {self._namespace}/{NAME}: it was not created by Unwind and has no certificate",
                remedy=f"delete it to have it created, or add tls.crt, tls.key and ca.crt ({_about_label()})",
            )
        return self._shown

    def then(self, use: Callable[[KeyPair, bytes], Awaitable[None]]) -> None:
        """Call `use` with each certificate after the first. `use` raises ValueError if it is invalid."""
        self._use = use

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                # Outside the timeout: what is due is done, however long the server takes.
                await self._take(await self._read())
                async with asyncio.timeout(self._wait()) as due:
                    secrets = follow(self._client, SECRETS, NAME, namespace=self._namespace)
                    async with aclosing(secrets):
                        async for found in secrets:
                            await self._take(found)
                            failures = 0
                            due.reschedule(asyncio.get_running_loop().time() + self._wait())
            except TimeoutError:
                pass  # something is due
            except UnwindError as error:
                failures += 1
                log.warning("certificate renewal failed, will retry", object=self._about, why=str(error))
                await backoff(failures)

    async def _take(self, found: Object | None) -> None:
        now = _readable(await self._settle(found))
        if now is None:
            log.warning(
                "Secret has no certificate, the previous one stays in use",
                object=self._about,
                remedy="add tls.crt, tls.key and ca.crt, or delete the Secret: it is then created again",
            )
        elif now != self._shown:
            try:
                if self._use:
                    await self._use(*now)
            except ValueError as error:
                log.warning(
                    "certificate invalid, the previous one stays in use",
                    object=self._about,
                    why=str(error),
                    remedy="correct the Secret",
                )
            else:
                self._shown = now
                log.info("certificate reloaded", object=self._about)

    async def _settle(self, found: Object | None) -> Object:
        """The Secret after everything that was due is written."""
        while True:
            if found is not None and not _ours(found):
                self._kept = None
                return found
            # A deleted Secret is restored unchanged, so that callers need no new CA.
            kept = _kept(found) if found is not None else self._kept
            wanted = renewed(kept, hosts=self._hosts, terms=self._terms, now=self._clock.now())
            if found is not None and wanted == kept:
                self._kept = kept
                return found
            try:
                found = await self._write(found, wanted)
            except (AlreadyExistsError, ConflictError):
                found = await self._read()  # another replica wrote it first
            else:
                log.info("certificate renewed", object=self._about)

    async def _read(self) -> Object | None:
        try:
            return await self._client.get(SECRETS, NAME, namespace=self._namespace)
        except NotFoundError:
            return None

    async def _write(self, found: Object | None, kept: StoredCertificates) -> Object:
        data = {
            "tls.crt": kept.server.certificate,
            "tls.key": kept.server.key,
            "ca.crt": kept.bundle,
            "ca.key": kept.authority.key,
        }
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if found is not None:
            patch = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "data": encoded}
            return await self._client.patch(SECRETS, NAME, patch, namespace=self._namespace)
        metadata = {
            "name": NAME,
            "namespace": self._namespace,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY_UNWIND},
        }
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls"}
        try:
            return await self._client.create(SECRETS, {**secret, "data": encoded})
        except NotFoundError as error:
            raise UnwindError(
                f"cannot store the serving certificate: namespace {self._namespace!r} not found",
                remedy="run `unwind install`, or choose another one with --namespace",
            ) from error
        except ForbiddenError as error:
            raise UnwindError(
                f"cannot store the serving certificate in namespace {self._namespace!r}: {error.status.message}",
                remedy="run `unwind install` for this namespace, or choose another one with --namespace",
            ) from error

    def _wait(self) -> float:
        """Seconds until something is due."""
        if self._kept is None:
            return _LONGEST_WAIT
        when = next_look(self._kept, hosts=self._hosts, terms=self._terms)
        return min(_LONGEST_WAIT, max(_SHORTEST_WAIT, (when - self._clock.now()).total_seconds()))

    @property
    def _about(self) -> str:
        return f"Secret/{self._namespace}/{NAME}"


def _about_label() -> str:
    return f"Unwind's own has the label {names.MANAGED_BY_LABEL}={names.MANAGED_BY_UNWIND}"


def _ours(secret: Object) -> bool:
    labels = secret["metadata"].get("labels") or {}
    return bool(labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY_UNWIND)


def _field(secret: Object, key: str) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "", validate=True)
    except binascii.Error:
        return b""


def _readable(secret: Object) -> tuple[KeyPair, bytes] | None:
    pair = KeyPair(certificate=_field(secret, "tls.crt"), key=_field(secret, "tls.key"))
    try:
        pair.check()
    except ValueError:
        return None
    return pair, _field(secret, "ca.crt")


def _kept(secret: Object) -> StoredCertificates:
    bundle = _field(secret, "ca.crt")
    end = b"-----END CERTIFICATE-----\n"
    newest, found, _ = bundle.partition(end)
    return StoredCertificates(
        server=KeyPair(certificate=_field(secret, "tls.crt"), key=_field(secret, "tls.key")),
        authority=KeyPair(certificate=newest + found, key=_field(secret, "ca.key")),
        bundle=bundle,
    )
