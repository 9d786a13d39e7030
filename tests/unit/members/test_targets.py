"""Anchors: the objects that represent members."""

from __future__ import annotations

import datetime as dt

from unwind.api.capi import Cluster, ClusterSpec, ClusterStatus, Initialization, Topology
from unwind.api.meta import ObjectMeta
from unwind.api.names import PAUSED_ANNOTATION
from unwind.api.sveltos import ClusterType, SveltosCluster, SveltosClusterSpec, SveltosClusterStatus
from unwind.members.targets import of_capi, of_sveltos

META = ObjectMeta(name="prod", namespace="fleet", uid="u-1", labels={"env": "prod"})
GOING = ObjectMeta(name="prod", namespace="fleet", uid="u-1", deletion_timestamp=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


def test_a_cluster_of_cluster_api_is_reached_by_its_own_secret() -> None:
    target = of_capi(Cluster(metadata=META))
    assert (target.type, target.secret, target.secret_key) == (ClusterType.CAPI, "prod-kubeconfig", "value")
    assert str(target) == "Cluster fleet/prod"
    assert (target.ref.group, target.ref.uid, target.labels) == ("cluster.x-k8s.io", "u-1", {"env": "prod"})
    assert not target.ready
    assert not target.has_class
    assert not target.terminating


def test_a_cluster_with_a_class_has_a_gate() -> None:
    assert of_capi(Cluster(metadata=META, spec=ClusterSpec(topology=Topology(class_="stub")))).has_class


def test_a_cluster_is_ready_once_its_control_plane_answered() -> None:
    for status in (
        ClusterStatus(control_plane_ready=True),
        ClusterStatus(initialization=Initialization(control_plane_initialized=True)),
    ):
        assert of_capi(Cluster(metadata=META, status=status)).ready


def test_a_cluster_is_paused_by_its_spec_or_by_an_annotation() -> None:
    assert of_capi(Cluster(metadata=META, spec=ClusterSpec(paused=True))).paused
    annotated = ObjectMeta(name="prod", annotations={PAUSED_ANNOTATION: "true"})
    assert of_capi(Cluster(metadata=annotated)).paused
    assert of_sveltos(SveltosCluster(metadata=META, spec=SveltosClusterSpec(paused=True))).paused


def test_a_cluster_that_is_deleted_says_since_when() -> None:
    for target in (of_capi(Cluster(metadata=GOING)), of_sveltos(SveltosCluster(metadata=GOING))):
        assert target.terminating
        assert target.deleted_at == GOING.deletion_timestamp


def test_a_sveltos_cluster_may_name_its_secret_and_the_key_in_it() -> None:
    target = of_sveltos(SveltosCluster(metadata=META, status=SveltosClusterStatus(ready=True)))
    assert (target.type, target.secret, target.secret_key) == (ClusterType.SVELTOS, "prod-sveltos-kubeconfig", "")
    assert target.ready
    assert not target.has_class
    named = SveltosClusterSpec(kubeconfig_name="mine", kubeconfig_key_name="re-kubeconfig", pull_mode=True)
    target = of_sveltos(SveltosCluster(metadata=META, spec=named))
    assert (target.secret, target.secret_key, target.pull_mode) == ("mine", "re-kubeconfig", True)


def test_a_registered_cluster_is_tried_whether_or_not_somebody_called_it_ready() -> None:
    assert of_sveltos(SveltosCluster(metadata=META)).ready
