"""When our own certificates are renewed, and how: a pure rule over what is kept in the Secret.

An authority signs the serving certificate. Callers verify against the bundle: every authority that is still valid. A
new authority first joins the bundle and signs only when everyone has had time to learn of it; the old one stays in the
bundle until it ends. So at no moment is a certificate shown that somebody cannot verify.
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
    """How long things last. Each is renewed when two thirds of its time are over."""

    authority: dt.timedelta = dt.timedelta(days=730)
    server: dt.timedelta = dt.timedelta(days=90)
    """Less than a third of the authority's, so that it changes over to the next one before the old one ends."""
    overlap: dt.timedelta = dt.timedelta(hours=1)
    """How long a new authority is only told of, before it signs."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas share."""

    server: KeyPair
    authority: KeyPair
    """The newest, which signs."""
    bundle: bytes
    """What callers verify against: the authorities that are still valid, the newest first."""


def renewed(kept: Kept | None, *, hosts: Sequence[str], terms: Terms, now: dt.datetime) -> Kept:
    """What has to be kept from now on: the same value, if nothing is due.

    Nothing kept, or nothing that could be used, is made anew. The certificate is for these hosts and for those it was
    for already: replicas that are called by different names share it.
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
    """What the certificates say; None if something is missing, broken, or does not fit together."""
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
    # Each has a name of its own: where several are trusted, that is how the right one is found.
    return Authority(f"unwind-serving@{now:%Y%m%dT%H%M%S%f}", lifetime=terms.authority, now=now)


def _sign(authority: Authority, hosts: Sequence[str], terms: Terms, now: dt.datetime) -> KeyPair:
    ends = x509.load_pem_x509_certificate(authority.certificate).not_valid_after_utc
    return authority.server("unwind", hosts=sorted(set(hosts)), lifetime=min(terms.server, ends - now), now=now)


def _signs_from(authority: x509.Certificate, bundle: Sequence[x509.Certificate], terms: Terms) -> dt.datetime:
    """From when on it may sign. The only one there is has nobody to give time to."""
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
