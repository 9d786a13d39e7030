"""Renewal rule of our own certificates: a pure function over what is stored in the Secret.

A CA signs the serving certificate. Callers verify against the CA bundle: every CA that is still valid. A new CA is
first added to the bundle, and signs only after all callers had time to receive it; the old CA stays in the bundle until
it expires. So the served certificate can be verified by every caller at any time.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from unwind.certificates import CLOCK_SKEW, Authority, KeyPair, certificate_pem

if TYPE_CHECKING:
    from collections.abc import Sequence


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Lifetimes. Each certificate is renewed after two thirds of its lifetime."""

    authority: dt.timedelta = dt.timedelta(days=730)
    server: dt.timedelta = dt.timedelta(days=90)
    """Less than a third of the CA's lifetime, so that it is signed by the next CA before the old one expires."""
    overlap: dt.timedelta = dt.timedelta(hours=1)
    """How long a new CA is only in the bundle before it signs."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas share in the Secret."""

    server: KeyPair
    authority: KeyPair
    """The newest CA, which signs."""
    bundle: bytes
    """The CA bundle: all valid CAs, the newest first."""


def renewed(kept: Kept | None, *, hosts: Sequence[str], terms: Terms, now: dt.datetime) -> Kept:
    """What to store from now on: the same value if nothing is due.

    Missing or unusable certificates are created. The certificate covers these hosts and those that it covered before,
    because replicas that are called by different names share it.
    """
    facts = _facts(kept)
    if kept is None or facts is None:
        authority = _new_authority(terms, now)
        server = _sign(authority, hosts, terms, now)
        return Kept(server=server, authority=authority.pair, bundle=authority.certificate)
    authority = Authority.kept(kept.authority)
    bundle = [one for one in facts.bundle if one.not_valid_after_utc > now]
    signs_from = _signs_from(facts.authority, bundle, terms)
    if now >= _due(facts.authority):
        authority = _new_authority(terms, now)
        newest = x509.load_pem_x509_certificate(authority.certificate)
        bundle.insert(0, newest)
        signs_from = _signs_from(newest, bundle, terms)
    server = kept.server
    wanted = sorted({*hosts, *facts.hosts})
    useless = now >= facts.server.not_valid_after_utc or not any(_signed(facts.server, by=one) for one in bundle)
    if useless or ((now >= _due(facts.server) or wanted != sorted(facts.hosts)) and now >= signs_from):
        server = _sign(authority, wanted, terms, now)
    return Kept(server=server, authority=authority.pair, bundle=b"".join(certificate_pem(one) for one in bundle))


def next_look(kept: Kept, *, hosts: Sequence[str], terms: Terms) -> dt.datetime:
    """When `renewed` will next have something to change."""
    facts = _facts(kept)
    if facts is None:
        return dt.datetime.min.replace(tzinfo=dt.UTC)
    wants_hosts = not set(hosts) <= set(facts.hosts)
    server = dt.datetime.min.replace(tzinfo=dt.UTC) if wants_hosts else _due(facts.server)
    return min(
        _due(facts.authority),
        max(server, _signs_from(facts.authority, facts.bundle, terms)),
        *(one.not_valid_after_utc for one in facts.bundle),
    )


class _Facts(msgspec.Struct, frozen=True):
    server: x509.Certificate
    authority: x509.Certificate
    bundle: list[x509.Certificate]
    hosts: list[str]


def _facts(kept: Kept | None) -> _Facts | None:
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
