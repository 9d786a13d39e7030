"""`unwind run`: options of the manager process."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unwind import logs
from unwind.api.annotation_values import DeletePolicy
from unwind.api.features import Feature, parse
from unwind.api.fields import Unknown
from unwind.api.rights import HOME
from unwind.cli.arguments import Flag, InstalledNamespace, duration, words
from unwind.components import Mode, Protection, Role
from unwind.errors import UsageError
from unwind.manager import feature_gates as gates
from unwind.manager import process
from unwind.manager.context import ManagerOptions
from unwind.notifications import addresses
from unwind.server import listener

File = Path | None


def run(
    *,
    kubeconfig: Annotated[
        File,
        Parameter(
            env_var="UNWIND_KUBECONFIG",
            help="The kubeconfig file; default: KUBECONFIG, ~/.kube/config, or the Pod's ServiceAccount.",
        ),
    ] = None,
    context: Annotated[
        str | None, Parameter(env_var="UNWIND_CONTEXT", help="The kubeconfig context; default: the current context.")
    ] = None,
    namespace: InstalledNamespace = HOME,
    listen: Annotated[
        str, Parameter(env_var="UNWIND_LISTEN", help="HTTPS address for webhooks and lifecycle hooks.")
    ] = "0.0.0.0:9443",
    metrics_listen: Annotated[
        str, Parameter(env_var="UNWIND_METRICS_LISTEN", help="HTTP address for /healthz, /readyz and /metrics.")
    ] = "0.0.0.0:8080",
    secure_metrics: Annotated[
        Flag,
        Parameter(
            env_var="UNWIND_SECURE_METRICS",
            help="Serve --metrics-listen over HTTPS, and /metrics only for tokens that may get the nonResourceURL.",
        ),
    ] = False,
    roles: Annotated[
        str, Parameter(env_var="UNWIND_ROLES", help="Roles of this process: controllers, serving, or both.")
    ] = "controllers,serving",
    features: Annotated[
        str | None,
        Parameter(
            env_var="UNWIND_FEATURES",
            help=f"Comma-separated features to run: {', '.join(Feature)}; default: those that were installed.",
        ),
    ] = None,
    feature_gates: Annotated[
        str, Parameter(env_var="UNWIND_FEATURE_GATES", help="Feature gates: NAME=true,NAME=false.")
    ] = "",
    tls_cert: Annotated[
        File,
        Parameter(
            env_var="UNWIND_TLS_CERT",
            help="Serving certificate file, reloaded when it changes; default: a generated, renewed certificate.",
        ),
    ] = None,
    tls_key: Annotated[File, Parameter(env_var="UNWIND_TLS_KEY", help="Private key file of --tls-cert.")] = None,
    tls_hosts: Annotated[
        str,
        Parameter(
            env_var="UNWIND_TLS_HOSTS",
            help="Comma-separated DNS names and IP addresses to add to the generated certificate.",
        ),
    ] = "",
    client_ca: Annotated[
        File,
        Parameter(env_var="UNWIND_CLIENT_CA", help="CA file; callers must present a client certificate from this CA."),
    ] = None,
    check_service: Annotated[
        bool,
        Parameter(
            env_var="UNWIND_CHECK_SERVICE",
            help="Register webhooks and hooks only when a replica answers through the Service; on in the chart.",
        ),
    ] = False,
    delete_policy: Annotated[
        str,
        Parameter(
            env_var="UNWIND_DELETE_POLICY",
            help="Default policy for external resources without an annotation: manage, skip, detach-on-delete.",
        ),
    ] = DeletePolicy.MANAGE.value,
    best_effort_timeout: Annotated[
        str,
        Parameter(
            env_var="UNWIND_BEST_EFFORT_TIMEOUT",
            help="How long to try to remove a best-effort add-on (RemovePolicies).",
        ),
    ] = "60s",
    keep_teardowns: Annotated[
        str,
        Parameter(
            env_var="UNWIND_KEEP_TEARDOWNS",
            help="How long finished Teardowns, with their ledger, are kept.",
        ),
    ] = "7d",
    archive: Annotated[
        File,
        Parameter(
            env_var="UNWIND_ARCHIVE",
            help="Directory that each finished Teardown is written to, with its ledger; it must exist.",
        ),
    ] = None,
    protection_mode: Annotated[
        Mode,
        Parameter(
            env_var="UNWIND_PROTECTION_MODE",
            help="How protection is enforced: admission policies, the manager's webhook, or automatic choice.",
        ),
    ] = Mode.AUTO,
    authorized_groups: Annotated[
        str | None,
        Parameter(
            env_var="UNWIND_AUTHORIZED_GROUPS",
            help="Comma-separated API groups that may be read to count custom resources; default: all.",
        ),
    ] = None,
    notification_hosts: Annotated[
        str,
        Parameter(
            env_var="UNWIND_NOTIFICATION_HOSTS",
            help="Comma-separated hosts of notification sinks that may have private or loopback addresses.",
        ),
    ] = "",
    notification_ca: Annotated[
        File,
        Parameter(
            env_var="UNWIND_NOTIFICATION_CA",
            help="CA file for notification sinks, in addition to the CAs of the system.",
        ),
    ] = None,
    log_format: Annotated[
        logs.Format,
        Parameter(env_var="UNWIND_LOG_FORMAT", help="Log format; auto is console on a terminal and json elsewhere."),
    ] = "auto",
    shutdown_grace: Annotated[
        str, Parameter(env_var="UNWIND_SHUTDOWN_GRACE", help="How long requests in flight may take after SIGTERM.")
    ] = "20s",
) -> None:
    """Run the manager: controllers and the server for webhooks and lifecycle hooks, until SIGTERM."""
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key must be used together")
    if check_service and client_ca:
        raise UsageError(
            "--check-service cannot be used with --client-ca: the API server's proxy has no client certificate",
            remedy="use --no-check-service",
        )
    options = ManagerOptions(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        listen=listener.parse_address(listen, option="--listen"),
        metrics_listen=listener.parse_address(metrics_listen, option="--metrics-listen"),
        secure_metrics=secure_metrics,
        roles=_roles(roles),
        features=None if features is None else parse(features),
        feature_gates=gates.parse(feature_gates),
        tls_cert=tls_cert,
        tls_key=tls_key,
        hosts=tuple(words(tls_hosts)),
        client_ca=client_ca,
        check_service=check_service,
        shutdown_grace=duration(shutdown_grace, option="--shutdown-grace").total_seconds(),
        delete_policy=_policy(delete_policy),
        best_effort=duration(best_effort_timeout, option="--best-effort-timeout").total_seconds(),
        keep_teardowns=duration(keep_teardowns, option="--keep-teardowns"),
        archive=archive,
        protection=Protection(
            mode=protection_mode,
            groups=None if authorized_groups is None else tuple(words(authorized_groups)),
        ),
        notification_hosts=_notification_hosts(notification_hosts),
        notification_ca=notification_ca,
    )
    logs.setup(log_format)
    _allow_many_files()
    process.run_process(options)


def _roles(text: str) -> tuple[Role, ...]:
    known = {role.value: role for role in Role}
    unknown = [word for word in words(text) if word not in known]
    if unknown or not words(text):
        raise UsageError(f"unknown role {', '.join(unknown) or repr('')} in --roles (valid: {', '.join(known)})")
    return tuple(dict.fromkeys(known[word] for word in words(text)))


def _notification_hosts(text: str) -> frozenset[str]:
    hosts = [word.lower().rstrip(".").strip("[]") for word in words(text)]
    for host in hosts:
        if not addresses.parsed(host) and not addresses.is_name(host):
            raise UsageError(
                f"invalid host {host!r} in --notification-hosts",
                remedy="use names and addresses as in the url of the policy, without scheme, port and wildcards",
            )
    return frozenset(hosts)


def _policy(text: str) -> DeletePolicy:
    policy = DeletePolicy.read(text)
    if isinstance(policy, Unknown):
        raise UsageError(f"invalid --delete-policy {text!r} (valid: {', '.join(DeletePolicy)})")
    return policy


def _allow_many_files() -> None:
    """Raise the soft limit of open files: each watch and caller needs one, and 1,024 exists for select() only."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
