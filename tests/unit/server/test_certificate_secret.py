"""Certificates are renewed in time, and at no moment is one shown that a caller cannot verify."""

from __future__ import annotations

import datetime as dt

import msgspec
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from unwind.certificates import Authority, KeyPair
from unwind.server.certificate_secret import StoredCertificates, Terms, next_look, renewed

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HOSTS = ("unwind.unwind-system.svc", "127.0.0.1")
TERMS = Terms(authority=dt.timedelta(days=90), server=dt.timedelta(days=20), overlap=dt.timedelta(days=1))


def day(number: float) -> dt.datetime:
    return START + dt.timedelta(days=number)


def at(number: float, kept: StoredCertificates | None, *, hosts: tuple[str, ...] = HOSTS) -> StoredCertificates:
    return renewed(kept, hosts=hosts, terms=TERMS, now=day(number))


def verify(kept: StoredCertificates, *, by: bytes, now: dt.datetime, host: str = HOSTS[0]) -> None:
    """What a caller does that has this bundle. Raises if it would not believe us."""
    store = Store(x509.load_pem_x509_certificates(by))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(host))
    verifier.verify(x509.load_pem_x509_certificate(kept.server.certificate), [])


def test_what_is_not_there_is_made() -> None:
    kept = at(0, None)
    verify(kept, by=kept.bundle, now=day(0))
    kept.server.check()
    assert Authority.kept(kept.authority).certificate == kept.bundle


def test_what_is_not_due_stays_as_it_is() -> None:
    kept = at(0, None)
    assert at(0, kept) == kept
    assert at(13, kept) == kept
    assert next_look(kept, hosts=HOSTS, terms=TERMS) > day(13)


def test_the_certificate_is_renewed_after_two_thirds_of_its_time_by_the_same_authority() -> None:
    kept = at(0, None)
    again = at(14, kept)
    assert again.server != kept.server
    assert (again.authority, again.bundle) == (kept.authority, kept.bundle)
    verify(again, by=kept.bundle, now=day(33))


def test_a_new_authority_is_told_of_before_it_signs_and_the_old_one_after() -> None:
    kept = at(0, None)
    for number in (14, 28, 42, 56):
        kept = at(number, kept)
    told = at(60.5, kept)
    assert told.server == kept.server
    assert told.authority != kept.authority
    assert told.bundle.endswith(kept.bundle)
    assert len(told.bundle) > len(kept.bundle)
    signed = at(70, told)
    assert signed.server != told.server
    verify(signed, by=told.bundle, now=day(70))
    verify(signed, by=Authority.kept(told.authority).certificate, now=day(70))
    at_the_end = at(90.5, at(84, signed))
    assert x509.load_pem_x509_certificates(at_the_end.bundle) == [
        x509.load_pem_x509_certificate(told.authority.certificate)
    ]


def test_a_new_authority_does_not_sign_before_its_time_even_if_a_certificate_is_due() -> None:
    kept = at(46.9, at(0, None))  # renewed late, so that it is due again at the same time as its authority
    told = at(60.3, kept)
    assert (told.server == kept.server, told.authority == kept.authority) == (True, False)
    assert next_look(told, hosts=HOSTS, terms=TERMS) >= day(61.3)
    assert at(61.4, told).server != kept.server


def test_another_name_to_be_called_by_is_added_to_those_there_are() -> None:
    kept = at(0, None)
    both = at(1, kept, hosts=("other.example",))
    verify(both, by=kept.bundle, now=day(1), host="other.example")
    verify(both, by=kept.bundle, now=day(1), host=HOSTS[0])
    assert at(1, both, hosts=HOSTS) == both, "replicas that are called differently do not fight"


def test_after_a_long_sleep_everything_is_made_anew() -> None:
    kept = at(400, at(0, None))
    verify(kept, by=kept.bundle, now=day(400))
    assert len(x509.load_pem_x509_certificates(kept.bundle)) == 1


def test_what_was_damaged_is_made_anew() -> None:
    kept, other = at(0, None), at(0, None)
    damaged = (
        msgspec.structs.replace(kept, bundle=b""),
        msgspec.structs.replace(kept, bundle=other.bundle),
        msgspec.structs.replace(kept, server=KeyPair(certificate=kept.server.certificate, key=other.server.key)),
        msgspec.structs.replace(kept, authority=KeyPair(certificate=kept.authority.certificate, key=b"")),
        msgspec.structs.replace(kept, server=other.server),
    )
    for item in damaged:
        again = at(1, item)
        verify(again, by=again.bundle, now=day(1))
        assert at(1, again) == again


@settings(max_examples=15, deadline=None)
@given(waits=st.lists(st.floats(min_value=0.0, max_value=6.0), min_size=10, max_size=40))
def test_whoever_knows_the_bundle_of_a_day_ago_can_verify_what_is_shown_now(waits: list[float]) -> None:
    """Looked at whenever it may be, as long as that is often enough."""
    now, kept = START, at(0, None)
    history: list[tuple[dt.datetime, bytes]] = [(now, kept.bundle)]
    for wait in waits:
        now += dt.timedelta(days=wait)
        kept = renewed(kept, hosts=HOSTS, terms=TERMS, now=now)
        known = [bundle for when, bundle in history if when <= now - TERMS.overlap] or [history[0][1]]
        verify(kept, by=known[-1], now=now)
        history.append((now, kept.bundle))
        assert renewed(kept, hosts=HOSTS, terms=TERMS, now=now) == kept
        assert next_look(kept, hosts=HOSTS, terms=TERMS) > now
