"""Admission policies that keep a user from borrowing the manager's rights through an object that makes it act.

The manager reads Secrets, reaches clusters and names users with rights that the author of an object may not have. So
the API server checks at admission that the author has the same rights: to read the ConfigMaps and Secrets that a
profile references, and the Secret with the credentials of a cluster. And a user cannot write an annotation that names
another user. Only new or changed fields are checked. docs/threat-model.md lists the checks of each kind and the gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import capi, karmada, names, sveltos
from unwind.api.admission import BY_MANAGER, policy_and_binding, resource_rule
from unwind.api.features import Feature
from unwind.api.resources import VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS
from unwind.api.rights import Contribution
from unwind.server.manager_names import manager_object

if TYPE_CHECKING:
    from unwind.api.rights import Setting

Object = dict[str, Any]

DEPLOY_LOCAL = "deploy-local"
"""The custom verb on clusterprofiles: the author may deploy to the management cluster, with the manager's rights."""
_CREATED = "request.operation == 'CREATE'"
_USER = "request.userInfo.username"


sources_name = manager_object("profile-sources")
"""The name of the policy for the sources of profiles; one per manager."""
credentials_name = manager_object("cluster-credentials")
"""The name of the policy for credentials of clusters."""
attribution_name = manager_object("attribution")
"""The name of the policy for annotations that name a user."""


# Sources of profiles


def _namespaces(secret: bool) -> list[Object]:
    """Variables: the namespaces of the Secrets, or of the ConfigMaps, that a profile references.

    One authorization check uses a third of an expression's cost limit. So a profile is checked by two of them: for all
    namespaces, or for the single namespace of all its references.
    """
    kind, is_it = (
        ("secret", "r.?kind.orValue('') == 'Secret'") if secret else ("config", "r.?kind.orValue('') != 'Secret'")
    )
    where = "variables.home != '' ? variables.home : r.?namespace.orValue('')"
    refs, charts = f"variables.{kind}Refs", f"variables.{kind}Charts"
    return [
        {"name": f"{kind}Refs", "expression": f"variables.refs.filter(r, {is_it}).map(r, {where})"},
        {
            "name": f"{kind}Charts",
            "expression": f"variables.charts.map(c, c.?valuesFrom.orValue([]).filter(r, {is_it}).map(r, {where}))"
            ".filter(some, size(some) > 0)",
        },
        {
            "name": f"{kind}Namespace",
            "expression": f"size({refs}) > 0 ? {refs}[0] : (size({charts}) > 0 ? {charts}[0][0] : '')",
        },
        {
            "name": f"{kind}OnePlace",
            "expression": f"{refs}.all(n, n == variables.{kind}Namespace)"
            f" && {charts}.all(some, some.all(n, n == variables.{kind}Namespace))",
        },
    ]


def _may_read(kind: str, plural: str) -> Object:
    refs, charts = f"variables.{kind}Refs", f"variables.{kind}Charts"
    may = f"authorizer.group('').resource('{plural}')"
    return {
        "expression": f"(size({refs}) == 0 && size({charts}) == 0) || (variables.{kind}OnePlace"
        f" && {may}.namespace(variables.{kind}Namespace).check('get').allowed()) || {may}.check('get').allowed()",
        "messageExpression": f"{_USER} + ' may not get the {plural} that the profile references'"
        f" + (variables.{kind}OnePlace && variables.{kind}Namespace != ''"
        f" ? ' in namespace ' + variables.{kind}Namespace"
        " : '; references without a namespace, or to several namespaces, require this right in all namespaces')"
        " + '; ask an administrator for the right'",
        "reason": "Forbidden",
    }


def _sources(setting: Setting) -> list[Object]:
    local = "variables.refs.exists(r, r.?deploymentType.orValue('') == 'Local')"
    deploy_local = (
        f"authorizer.group('{sveltos.CONFIG_GROUP}').resource('{sveltos.CLUSTER_PROFILES.plural}')"
        f".check('{DEPLOY_LOCAL}').allowed()"
    )
    changed = " || ".join(f"object.?spec.?{item} != oldObject.?spec.?{item}" for item in ("policyRefs", "helmCharts"))
    policy = {
        "matchConstraints": {
            "resourceRules": [
                resource_rule(item, "CREATE", "UPDATE") for item in (sveltos.CLUSTER_PROFILES, sveltos.PROFILES)
            ]
        },
        "matchConditions": [
            {"name": "changed", "expression": f"{_CREATED} || {changed}"},
            {"name": "not-the-manager", "expression": f"!{BY_MANAGER}"},
        ],
        "variables": [
            {"name": "home", "expression": "object.metadata.?namespace.orValue('')"},
            {"name": "refs", "expression": "object.?spec.?policyRefs.orValue([])"},
            {"name": "charts", "expression": "object.?spec.?helmCharts.orValue([])"},
            *_namespaces(secret=True),
            *_namespaces(secret=False),
        ],
        "validations": [
            _may_read("secret", "secrets"),
            _may_read("config", "configmaps"),
            {
                "expression": f"!{local} || {deploy_local}",
                "messageExpression": f"{_USER} + ' may not deploy to the management cluster: deploymentType Local"
                f" requires the verb {DEPLOY_LOCAL} on {sveltos.CLUSTER_PROFILES.plural}.{sveltos.CONFIG_GROUP}; ask an"
                " administrator for the right'",
                "reason": "Forbidden",
            },
        ],
    }
    return policy_and_binding(sources_name(setting.namespace), policy)


# Credentials of clusters

_KARMADA_FIELDS = ("apiEndpoint", "secretRef", "impersonatorSecretRef", "insecureSkipTLSVerification", "proxyURL")
_SVELTOS_FIELDS = ("kubeconfigName", "kubeconfigKeyName")


def _credentials(setting: Setting) -> list[Object]:
    group = "request.resource.group"
    of_karmada = f"{group} == '{karmada.CLUSTERS.group}'"
    changed = " || ".join(
        f"object.?spec.?{field} != oldObject.?spec.?{field}" for field in (*_KARMADA_FIELDS, *_SVELTOS_FIELDS)
    )
    ref = "object.?spec.?secretRef"
    policy = {
        "matchConstraints": {
            "resourceRules": [
                resource_rule(item, "CREATE", "UPDATE")
                for feature, item in (
                    (Feature.KARMADA, karmada.CLUSTERS),
                    (Feature.ADDONS, sveltos.SVELTOS_CLUSTERS),
                )
                if feature in setting.features
            ]
        },
        "matchConditions": [
            {"name": "changed", "expression": f"{_CREATED} || {changed}"},
            {"name": "not-the-manager", "expression": f"!{BY_MANAGER}"},
        ],
        "variables": [
            {
                "name": "place",
                "expression": f"{of_karmada} ? {ref}.?namespace.orValue('') : object.metadata.namespace",
            },
            {
                "name": "secret",
                "expression": f"{of_karmada} ? {ref}.?name.orValue('')"
                " : (object.?spec.?kubeconfigName.orValue('') != '' ? object.spec.kubeconfigName"
                " : object.metadata.name + '-sveltos-kubeconfig')",
            },
        ],
        "validations": [
            {
                "expression": "variables.secret == '' || authorizer.group('').resource('secrets')"
                ".namespace(variables.place).name(variables.secret).check('get').allowed()",
                "messageExpression": f"{_USER} + ' may not get Secret ' + variables.place + '/' + variables.secret"
                " + ', which has the credentials of the cluster; ask an administrator for the right'",
                "reason": "Forbidden",
            }
        ],
    }
    return policy_and_binding(credentials_name(setting.namespace), policy)


# Attribution: annotations that name a user


# The manager's webhook writes the first three for the user of the request, as part of that request, and the last by a
# request of its own.
_NAMING = {
    names.FORCE_RELEASE_BY_ANNOTATION: f"{{}} == {_USER}",
    names.FORCE_RELEASE_GROUPS_ANNOTATION: "{} == request.userInfo.?groups.orValue([]).join('\\n')",
    # "Needless by jane": the new value and the user.
    names.REMOVE_STRATEGY_BY_ANNOTATION: f"{{}}.endsWith(' by ' + {_USER})",
    names.DELETION_REQUESTED_BY_ANNOTATION: "false",
}


def _names_anew(annotation: str) -> str:
    """CEL: the request sets or changes an annotation."""
    new, old = (f"{of}.?metadata.?annotations[?'{annotation}']" for of in ("object", "oldObject"))
    return f"({new}.hasValue() && ({_CREATED} || {new} != {old}))"


def _attributes(annotation: str) -> str:
    """CEL: the request attributes something to the user that an annotation names.

    A new release is attributed to a user whom an earlier one has left on the object: the webhook replaces that name,
    but it may not be available.
    """
    if annotation not in (names.FORCE_RELEASE_BY_ANNOTATION, names.FORCE_RELEASE_GROUPS_ANNOTATION):
        return _names_anew(annotation)
    there = f"object.?metadata.?annotations[?'{annotation}'].hasValue()"
    return f"({_names_anew(annotation)} || ({there} && {_names_anew(names.FORCE_RELEASE_ANNOTATION)}))"


def _attribution(setting: Setting) -> list[Object]:
    policy = {
        "matchConstraints": {
            "resourceRules": [
                resource_rule(item, "CREATE", "UPDATE")
                for feature, item in ((Feature.CAPI, capi.CLUSTERS), (Feature.KARMADA, karmada.CLUSTERS))
                if feature in setting.features
            ]
        },
        "matchConditions": [
            {
                "name": "names-a-user",
                "expression": " || ".join(map(_names_anew, (*_NAMING, names.FORCE_RELEASE_ANNOTATION))),
            },
            {"name": "not-the-manager", "expression": f"!{BY_MANAGER}"},
        ],
        "validations": [
            {
                "expression": f"!{_attributes(name)} || {true.format(f'object.metadata.annotations[{name!r}]')}",
                "messageExpression": f"'annotation {name} must name the user of the request, ' + {_USER}"
                " + '; remove it: Unwind writes it'",
                "reason": "Forbidden",
            }
            for name, true in _NAMING.items()
        ],
    }
    return policy_and_binding(attribution_name(setting.namespace), policy)


def _manifests(setting: Setting) -> list[Object]:
    on = setting.features
    return [
        *(_sources(setting) if Feature.ADDONS in on else ()),
        *(_credentials(setting) if on & {Feature.ADDONS, Feature.KARMADA} else ()),
        *(_attribution(setting) if on & {Feature.CAPI, Feature.KARMADA} else ()),
    ]


TENANTS = Contribution(
    name="tenants",
    features=frozenset({Feature.ADDONS, Feature.CAPI, Feature.KARMADA}),
    kinds=(VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS),
    manifests=_manifests,
)
