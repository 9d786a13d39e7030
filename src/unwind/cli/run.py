"""`unwind run`: the manager."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unwind import features, logs
from unwind.api.fields import Unknown
from unwind.api.policies import DeletePolicy
from unwind.api.rights import HOME
from unwind.cli.words import span, words
from unwind.errors import UsageError
from unwind.parts import Role
from unwind.protecting.modes import Mode, Protection
from unwind.serving import addresses, running
from unwind.serving.running import Options

File = Path | None


def run(
    *,
    kubeconfig: Annotated[
        File,
        Parameter(
            env_var="UNWIND_KUBECONFIG",
            help="The kubeconfig file; otherwise KUBECONFIG, ~/.kube/config, or the Pod's own.",
        ),
    ] = None,
    context: Annotated[
        str | None, Parameter(env_var="UNWIND_CONTEXT", help="The context in it, instead of the current one.")
    ] = None,
    namespace: Annotated[str, Parameter(env_var="UNWIND_NAMESPACE", help="The namespace of Unwind itself.")] = HOME,
    listen: Annotated[
        str, Parameter(env_var="UNWIND_LISTEN", help="Where webhooks and hooks are answered, over HTTPS.")
    ] = "0.0.0.0:9443",
    metrics_listen: Annotated[
        str, Parameter(env_var="UNWIND_METRICS_LISTEN", help="Where /healthz, /readyz and /metrics are.")
    ] = "0.0.0.0:8080",
    roles: Annotated[
        str, Parameter(env_var="UNWIND_ROLES", help="What this process does: controllers, serving, or both.")
    ] = "controllers,serving",
    feature_gates: Annotated[
        str, Parameter(env_var="UNWIND_FEATURE_GATES", help="What is switched on or off: K=true,K=false.")
    ] = "",
    tls_cert: Annotated[
        File,
        Parameter(
            env_var="UNWIND_TLS_CERT",
            help="The serving certificate, read again when it changes. Without it, Unwind makes and renews its own.",
        ),
    ] = None,
    tls_key: Annotated[File, Parameter(env_var="UNWIND_TLS_KEY", help="Its key.")] = None,
    tls_hosts: Annotated[
        str,
        Parameter(
            env_var="UNWIND_TLS_HOSTS",
            help="Names and addresses, separated by commas, that our own certificate is for besides the Service's.",
        ),
    ] = "",
    client_ca: Annotated[
        File,
        Parameter(env_var="UNWIND_CLIENT_CA", help="Only callers with a certificate from this authority get in."),
    ] = None,
    delete_policy: Annotated[
        str,
        Parameter(
            env_var="UNWIND_DELETE_POLICY",
            help="What holds for things outside the cluster whose objects say nothing: manage, skip, detach-on-delete.",
        ),
    ] = DeletePolicy.MANAGE.value,
    best_effort_timeout: Annotated[
        str,
        Parameter(
            env_var="UNWIND_BEST_EFFORT_TIMEOUT",
            help="How long the removal of an add-on is tried whose cluster does not wait for it (RemovePolicies).",
        ),
    ] = "60s",
    keep_teardowns: Annotated[
        str,
        Parameter(
            env_var="UNWIND_KEEP_TEARDOWNS",
            help="How long the record of a teardown, with its ledger, stays at its end.",
        ),
    ] = "7d",
    protection_mode: Annotated[
        Mode,
        Parameter(
            env_var="UNWIND_PROTECTION_MODE",
            help="Who keeps protected objects: policies in the API server, the manager's webhook, or whichever can.",
        ),
    ] = Mode.AUTO,
    authorized_groups: Annotated[
        str | None,
        Parameter(
            env_var="UNWIND_AUTHORIZED_GROUPS",
            help="The API groups, separated by commas, that may be read to count what there is of a CRD; all if unset.",
        ),
    ] = None,
    log_format: Annotated[
        logs.Format,
        Parameter(env_var="UNWIND_LOG_FORMAT", help="console is for people, json for machines; auto is by the output."),
    ] = "auto",
    shutdown_grace: Annotated[
        str, Parameter(env_var="UNWIND_SHUTDOWN_GRACE", help="How long requests under way may take after SIGTERM.")
    ] = "20s",
) -> None:
    """Run Unwind: all controllers and the server for webhooks and hooks, until SIGTERM."""
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("a certificate and its key belong together", remedy="give both --tls-cert and --tls-key")
    options = Options(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        listen=addresses.parse(listen, option="--listen"),
        metrics_listen=addresses.parse(metrics_listen, option="--metrics-listen"),
        roles=_roles(roles),
        features=features.parse(feature_gates),
        tls_cert=tls_cert,
        tls_key=tls_key,
        hosts=tuple(words(tls_hosts)),
        client_ca=client_ca,
        shutdown_grace=span(shutdown_grace, option="--shutdown-grace").total_seconds(),
        delete_policy=_policy(delete_policy),
        best_effort=span(best_effort_timeout, option="--best-effort-timeout").total_seconds(),
        keep_teardowns=span(keep_teardowns, option="--keep-teardowns"),
        protection=Protection(
            mode=protection_mode,
            groups=None if authorized_groups is None else tuple(words(authorized_groups)),
        ),
    )
    logs.setup(log_format)
    _allow_many_files()
    running.run_process(options)


def _roles(text: str) -> tuple[Role, ...]:
    known = {role.value: role for role in Role}
    unknown = [word for word in words(text) if word not in known]
    if unknown or not words(text):
        raise UsageError(f"--roles does not know {', '.join(unknown) or 'nothing'}", remedy=f"use {','.join(known)}")
    return tuple(dict.fromkeys(known[word] for word in words(text)))


def _policy(text: str) -> DeletePolicy:
    policy = DeletePolicy.read(text)
    if isinstance(policy, Unknown):
        raise UsageError(f"--delete-policy is {text!r}", remedy=f"use one of {', '.join(DeletePolicy)}")
    return policy


def _allow_many_files() -> None:
    """Every watch and every caller is an open file, and the usual soft limit of 1,024 is for programs with select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
