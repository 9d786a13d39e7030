"""The real controllers of others, on a local cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.local import companions, tools

if TYPE_CHECKING:
    from unwind.local.plane import Plane
    from unwind.local.tools import Tool

KINDS = {
    tools.CAAPH: {"helmreleaseproxies.addons.cluster.x-k8s.io", "helmchartproxies.addons.cluster.x-k8s.io"},
    tools.KUBEADM_CONTROL_PLANE: {
        "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io",
        "kubeadmconfigs.bootstrap.cluster.x-k8s.io",
    },
    tools.KUSTOMIZE_CONTROLLER: {
        "kustomizations.kustomize.toolkit.fluxcd.io",
        "externalartifacts.source.toolkit.fluxcd.io",
    },
    tools.HELM_CONTROLLER: {"helmreleases.helm.toolkit.fluxcd.io", "externalartifacts.source.toolkit.fluxcd.io"},
}


@pytest.mark.parametrize("tool", tools.COMPANIONS, ids=lambda tool: tool.name)
async def test_a_companion_runs_with_its_kinds_and_ends(plane: Plane, tool: Tool) -> None:
    async with companions.running(tool, plane.management) as controller:
        served = await plane.management.client.list(CUSTOM_RESOURCE_DEFINITIONS)
        assert {crd["metadata"]["name"] for crd in served} >= KINDS[tool]
        process = controller.process
        assert process
        assert process.alive
    assert not process.alive
