"""Which addresses the manager may send notifications to (pure).

A sink is named by users who may write a TeardownPolicy, and called from the manager's place in the network. So the
manager calls only addresses that anybody can call: nothing on its own machine, in its cluster or in its network.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Names that only this machine or this cluster resolves.
_INTERNAL = ("localhost", "local", "svc", "internal", "localdomain")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
# Addresses that no host can be at, or that answer with the credentials of the machine: not even for an allowed host,
# because its name may be resolved by others.
_NEVER: tuple[Network, ...] = (
    ipaddress.IPv4Network("0.0.0.0/8"),
    ipaddress.IPv4Network("169.254.0.0/16"),  # link-local, also 169.254.169.254
    ipaddress.IPv4Network("224.0.0.0/4"),  # multicast
    ipaddress.IPv4Network("240.0.0.0/4"),  # reserved, and broadcast
    ipaddress.IPv4Network("168.63.129.16/32"),  # Azure's host
    ipaddress.IPv4Network("100.100.100.200/32"),  # Alibaba Cloud's metadata
    ipaddress.IPv6Network("::/128"),
    ipaddress.IPv6Network("fe80::/10"),  # link-local
    ipaddress.IPv6Network("ff00::/8"),  # multicast
    ipaddress.IPv6Network("fd00:ec2::254/128"),  # the metadata of AWS
)
# Besides those that Python's tables call not global, which differ between its versions.
_PRIVATE: tuple[Network, ...] = (
    ipaddress.IPv4Network("10.0.0.0/8"),
    ipaddress.IPv4Network("100.64.0.0/10"),  # shared by carriers, and used for Pods
    ipaddress.IPv4Network("127.0.0.0/8"),
    ipaddress.IPv4Network("172.16.0.0/12"),
    ipaddress.IPv4Network("192.0.0.0/24"),
    ipaddress.IPv4Network("192.168.0.0/16"),
    ipaddress.IPv4Network("198.18.0.0/15"),
    ipaddress.IPv6Network("::1/128"),
    ipaddress.IPv6Network("fc00::/7"),
    ipaddress.IPv6Network("fec0::/10"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
    ipaddress.IPv6Network("2001::/32"),  # Teredo: the address inside is obfuscated
)


class AddressRules(msgspec.Struct, frozen=True, kw_only=True):
    """What `unwind run` was told, and what it knows about its own network."""

    allowed: frozenset[str] = frozenset()
    """Hosts, as an address names them, that may be in a private network (--notification-hosts)."""
    own: frozenset[str] = frozenset()
    """Addresses of the API server: they may be public ones."""

    def refuse_host(self, host: str) -> str:
        """Why a host is not even resolved; empty if it is."""
        name = host.lower().rstrip(".")
        if name in self.allowed or parsed(name):
            return ""
        if "." not in name or name.rpartition(".")[2] in _INTERNAL or name.endswith(".cluster.local"):
            return f"{host} is a name inside the cluster or the machine"
        return ""

    def refuse_address(self, host: str, address: Address) -> str:
        """Why a host is not called at this address; empty if it is."""
        allowed = host.lower().rstrip(".") in self.allowed
        for inner in _inner(address):
            if _within(inner, _NEVER):
                return f"{address} is a link-local, multicast or reserved address"
            if allowed:
                continue
            if _within(inner, _PRIVATE) or not inner.is_global:
                return f"{address} is not a public address"
            if str(inner) in self.own:
                return f"{address} is the address of the API server"
        return ""


def parsed(host: str) -> Address | None:
    """The address, if a host is one."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def is_name(host: str) -> bool:
    """Whether a text can be the name of a host."""
    return re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", host) is not None


def _inner(address: Address) -> list[Address]:
    """The address, or the IPv4 address that an IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped:
        return [address.ipv4_mapped]
    if address.sixtofour:
        return [address, address.sixtofour]
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address]


def _within(address: Address, networks: Collection[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
