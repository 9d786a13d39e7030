"""The binaries and assets that a control plane of a given shape needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unwind.local import building, tools

if TYPE_CHECKING:
    from unwind.local.building import ProgressListener
    from unwind.local.home import Shape
    from unwind.local.tools import Tool


class Toolbox(msgspec.Struct, frozen=True):
    """The paths of binaries and their assets, by name.

    Plain text, because it is passed to the supervisor as JSON.
    """

    programs: dict[str, str]
    assets: dict[str, str]

    def program(self, tool: Tool) -> Path:
        return Path(self.programs[tool.name])

    def assets_of(self, tool: Tool) -> Path:
        return Path(self.assets[tool.name])


def needed(shape: Shape) -> list[Tool]:
    """The tools that a control plane of this shape runs."""
    needed = [tools.ETCD, tools.KUBE_APISERVER, tools.KUBE_CONTROLLER_MANAGER]
    if shape.nodes:
        needed += [tools.KUBE_SCHEDULER, tools.KWOK]
    if shape.capi:
        needed.append(tools.CLUSTER_API_MANAGER)
    if shape.helm:
        needed.append(tools.HELM)
    return needed


async def equip(shape: Shape, progress: ProgressListener | None = None) -> Toolbox:
    """Find the tools for a control plane of this shape, and build those that are missing."""
    found = await building.ensure(needed(shape), progress)
    return Toolbox(
        programs={name: str(tool.path) for name, tool in found.items()},
        assets={tool.name: str(tools.assets(tool)) for tool in needed(shape) if tool.assets},
    )
