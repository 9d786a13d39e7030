"""A private certificate authority (CA) and the certificates it signs, for local clusters and the HTTPS listener."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING, Self

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

LIFETIME = dt.timedelta(days=365)
CLOCK_SKEW = dt.timedelta(hours=1)


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes

    def check(self) -> None:
        """Raises ValueError if they are not PEM or do not belong together."""
        key = serialization.load_pem_private_key(self.key, password=None)
        if key.public_key() != x509.load_pem_x509_certificate(self.certificate).public_key():
            raise ValueError("the private key does not match the certificate; use the key of this certificate")


class Authority:
    """A certificate authority: a new one, or a stored one (`Authority.kept`)."""

    def __init__(self, name: str, *, lifetime: dt.timedelta = LIFETIME, now: dt.datetime | None = None) -> None:
        key = new_private_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject=subject, issuer=subject, key=key, lifetime=lifetime, now=now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        self._key, self._name = key, subject
        self.pair = KeyPair(certificate=certificate_pem(certificate), key=private_pem(key))

    @classmethod
    def kept(cls, pair: KeyPair) -> Self:
        """The CA with this certificate and key. Raises ValueError if they are not a CA."""
        pair.check()
        key = serialization.load_pem_private_key(pair.key, password=None)
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("unsupported key type of the CA")  # noqa: TRY004 - a bad value
        authority = cls.__new__(cls)
        authority._key, authority._name = key, certificate.subject  # noqa: SLF001 - of its own class
        authority.pair = pair
        return authority

    @property
    def certificate(self) -> bytes:
        """The CA certificate as PEM."""
        return self.pair.certificate

    def server(
        self, name: str, *, hosts: Sequence[str], lifetime: dt.timedelta = LIFETIME, now: dt.datetime | None = None
    ) -> KeyPair:
        """A server certificate for these DNS names and IP addresses."""
        return self._sign(name, usage=ExtendedKeyUsageOID.SERVER_AUTH, hosts=hosts, lifetime=lifetime, now=now)

    def client(self, user: str, *, groups: Sequence[str] = ()) -> KeyPair:
        """A client certificate that authenticates as this user and groups in Kubernetes."""
        return self._sign(user, usage=ExtendedKeyUsageOID.CLIENT_AUTH, groups=groups)

    def _sign(
        self,
        name: str,
        *,
        usage: x509.ObjectIdentifier,
        hosts: Sequence[str] = (),
        groups: Sequence[str] = (),
        lifetime: dt.timedelta = LIFETIME,
        now: dt.datetime | None = None,
    ) -> KeyPair:
        key = new_private_key()
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
            + [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        builder = (
            _builder(subject=subject, issuer=self._name, key=key, lifetime=lifetime, now=now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            # Python 3.13 and newer refuses a certificate without an authority key identifier.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        return KeyPair(certificate=certificate_pem(builder.sign(self._key, hashes.SHA256())), key=private_pem(key))


def new_private_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    lifetime: dt.timedelta,
    now: dt.datetime | None,
) -> x509.CertificateBuilder:
    now = now or dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
