from __future__ import annotations

from unwind.api.meta import ObjectRef
from unwind.members.targets import APIEndpoint, ClusterTarget
from unwind.why.answers import Kubectl
from unwind.why.reachable_clusters import reaching

REF = ObjectRef(kind="Cluster", namespace="shop", name="prod", uid="c-1")


def test_a_member_is_reached_by_a_file_that_nobody_else_can_read() -> None:
    anchor = ClusterTarget(ref=REF, secret="prod-kubeconfig", secret_key="value")  # noqa: S106 - the name of a Secret
    kubectl = reaching(anchor, Kubectl(options=("--context", "home")))
    assert kubectl.first == (
        (
            "(umask 077; kubectl --context home get secret -n shop prod-kubeconfig"
            " -o 'go-template={{index .data \"value\" | base64decode}}' > prod.kubeconfig)"
        ),
    )
    assert kubectl.call("get", "pods") == "kubectl --kubeconfig prod.kubeconfig get pods"


def test_a_member_with_a_token_gets_a_kubeconfig_made_of_its_secret() -> None:
    anchor = ClusterTarget(
        ref=REF,
        secret="prod",  # noqa: S106 - the name of a Secret
        secret_namespace="karmada-cluster",  # noqa: S106 - where it is
        endpoint=APIEndpoint(server="https://10.0.0.1:6443"),
    )
    [first] = reaching(anchor, Kubectl()).first
    assert "-n karmada-cluster prod" in first
    assert '"server":"https://10.0.0.1:6443","certificate-authority-data":"{{.data.caBundle}}"' in first
    assert '"token":"{{base64decode .data.token}}"' in first
