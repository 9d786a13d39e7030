"""Which addresses the manager sends notifications to."""

from __future__ import annotations

import ipaddress

import pytest

from unwind.notifications.addresses import AddressRules

RULES = AddressRules(allowed=frozenset({"receiver.monitoring.svc", "127.0.0.1", "::1"}), own=frozenset({"34.1.2.3"}))
HOST = "hooks.example.com"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",  # noqa: S104 - not listened at
        "0.1.2.3",
        "10.96.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "192.0.0.8",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "34.1.2.3",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0.0.0.0",
        "::ffff:34.1.2.3",
        "64:ff9b::a00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "fc00::1",
        "fd12:3456::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "100::1",
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert RULES.refuse_address(HOST, ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"]
)
def test_public_addresses_are_called(address: str) -> None:
    assert RULES.refuse_address(HOST, ipaddress.ip_address(address)) == ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "kubernetes",
        "foo.localhost",
        "kubernetes.default.svc",
        "a.b.svc.cluster.local",
        "metadata.google.internal",
    ],
)
def test_names_inside_the_cluster_or_the_machine_are_not_even_resolved(host: str) -> None:
    assert RULES.refuse_host(host)
    assert RULES.refuse_host(f"{host}.")


def test_an_allowed_host_may_be_private_but_never_link_local() -> None:
    host = "receiver.monitoring.svc"
    assert RULES.refuse_host(host) == RULES.refuse_host("Receiver.Monitoring.svc") == ""
    for address in ("10.96.0.17", "127.0.0.1", "fd00::1", "::ffff:10.0.0.1"):
        assert RULES.refuse_address(host, ipaddress.ip_address(address)) == ""
    for address in ("169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "fd00:ec2::254", "0.0.0.0", "ff02::1"):  # noqa: S104
        assert RULES.refuse_address(host, ipaddress.ip_address(address))
    # Only the host that is named, not everything at its address.
    assert RULES.refuse_address(HOST, ipaddress.ip_address("127.0.0.1"))
    assert RULES.refuse_host("other.monitoring.svc")
