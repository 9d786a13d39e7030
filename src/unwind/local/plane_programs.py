"""Command lines of the cluster's components (pure)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unwind.api import resources

if TYPE_CHECKING:
    from unwind.kube.client import Object

SERVICE_RANGE = "10.96.0.0/16"
HOSTS = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1")
# A socket in the plane's directory, which is the working directory of the processes: no other user can connect to it,
# and it needs no port. etcd requires something that looks like host:port, and names the socket accordingly.
ETCD_URL = "unix://etcd.sock:0"
ETCD_SOCKET = "etcd.sock:0"
_ETCD_PEER_URL = "unix://peer.sock:0"
RUNS_PODS = "unwind.dev/runs-pods"
"""The label and taint of nodes that run their Pods as processes."""


class ClusterFiles(msgspec.Struct, frozen=True):
    """Paths of a cluster's certificates, keys and logs."""

    directory: Path

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user.removeprefix('system:')}.kubeconfig"

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    @property
    def service_account_public_key(self) -> Path:
        return self.directory / "service-accounts.pub"

    @property
    def audit_policy(self) -> Path:
        return self.directory / "audit-policy.yaml"

    @property
    def audit_log(self) -> Path:
        return self.directory / "audit.log"


def etcd(program: Path, *, data: Path) -> list[str]:
    return [
        str(program),
        f"--data-dir={data}",
        # The data is deleted with the plane: waiting for the disk gains nothing.
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={_ETCD_PEER_URL}",
        f"--initial-advertise-peer-urls={_ETCD_PEER_URL}",
        f"--initial-cluster=default={_ETCD_PEER_URL}",
        # A single member elects itself: a short election timeout makes it serve sooner. A shorter one needs a shorter
        # heartbeat, which takes CPU time as long as the plane runs.
        "--heartbeat-interval=50",
        "--election-timeout=250",
        "--log-level=warn",
        "--quota-backend-bytes=8589934592",
    ]


def api_server(program: Path, files: ClusterFiles, *, prefix: str, port: int) -> list[str]:
    return _argv(
        program,
        {
            "etcd-servers": ETCD_URL,
            "etcd-prefix": prefix,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            # It would publish its address in Endpoints, where loopback is not allowed.
            "endpoint-reconciler-type": "none",
            "secure-port": port,
            "permit-port-sharing": True,
            "tls-cert-file": files.certificate("server"),
            "tls-private-key-file": files.key("server"),
            "client-ca-file": files.certificate("ca"),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": files.service_account_public_key,
            "service-account-signing-key-file": files.key("service-accounts"),
            "service-cluster-ip-range": SERVICE_RANGE,
            "authorization-mode": "Node,RBAC",
            # In addition to the default plugins, as installers of real clusters do.
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": True,
            # Service addresses are not routed here: resolve the endpoint instead, and fail at once if there is none.
            "enable-aggregator-routing": True,
            "proxy-client-cert-file": files.certificate("aggregator"),
            "proxy-client-key-file": files.key("aggregator"),
            "requestheader-client-ca-file": files.certificate("aggregator-ca"),
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "audit-policy-file": files.audit_policy,
            "audit-log-path": files.audit_log,
        },
    )


def controller_manager(program: Path, files: ClusterFiles, *, port: int) -> list[str]:
    return _argv(
        program,
        _component(files, "system:kube-controller-manager", port)
        | {
            "use-service-account-credentials": True,
            "service-account-private-key-file": files.key("service-accounts"),
            "root-ca-file": files.certificate("ca"),
            # Only signers that users need are enabled, not those for kubelets, which do not exist here. Each signer
            # uses an inotify instance, of which a user may have 128.
            "cluster-signing-kube-apiserver-client-cert-file": files.certificate("ca"),
            "cluster-signing-kube-apiserver-client-key-file": files.key("ca"),
            # The default of 20 requests per second costs 4 s at every start, for its controllers' ServiceAccounts.
            "kube-api-qps": 500,
            "kube-api-burst": 1000,
        },
    )


def scheduler(program: Path, files: ClusterFiles, *, port: int) -> list[str]:
    return _argv(program, _component(files, "system:kube-scheduler", port))


def kwok(program: Path, files: ClusterFiles, *, stages: Path) -> list[str]:
    return _argv(
        program,
        {
            "kubeconfig": files.kubeconfig("kwok"),
            # All nodes except those that run their Pods for real (`pods/`).
            "manage-all-nodes": False,
            "manage-nodes-with-label-selector": f"!{RUNS_PODS}",
            # Renews the node Leases, by which the controller manager sees that nodes are alive.
            "node-lease-duration-seconds": 40,
            "config": ",".join(str(stage) for stage in sorted(stages.glob("*.yaml"))),
        },
    )


def node(name: str) -> Object:
    """A Node simulated by KWOK."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": "local",
    }
    return {
        "apiVersion": resources.NODES.api_version,
        "kind": resources.NODES.kind,
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": _CAPACITY, "capacity": _CAPACITY},
    }


_CAPACITY = {"cpu": "32", "memory": "256Gi", "pods": "10000"}


def _component(files: ClusterFiles, user: str, port: int) -> dict[str, object]:
    """The flags of every component that authenticates to the API server."""
    config = files.kubeconfig(user)
    return {
        "kubeconfig": config,
        "authentication-kubeconfig": config,
        # The client CA comes from the API server, too: each watched file uses an inotify instance.
        "authorization-kubeconfig": config,
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "permit-port-sharing": True,
        "tls-cert-file": files.certificate("server"),
        "tls-private-key-file": files.key("server"),
        "leader-elect": False,
    }


def _argv(program: Path, flags: dict[str, object]) -> list[str]:
    def text(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [str(program), *(f"--{flag}={text(value)}" for flag, value in flags.items())]
