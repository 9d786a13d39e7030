"""The controllers of add-ons, as parts of a process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.addons.helm import Helm
from unwind.addons.helm_removing import HelmReleases
from unwind.controllers.addons.caches import Caches
from unwind.controllers.addons.configurations import Configurations
from unwind.controllers.addons.profiles import Profiles
from unwind.controllers.addons.summaries import Summaries
from unwind.controllers.teardowns.controller import Teardowns
from unwind.deleting.builtin import BUILTIN
from unwind.deleting.registry import installed
from unwind.parts import Share

if TYPE_CHECKING:
    from unwind.parts import Surroundings


def contribute(surroundings: Surroundings) -> Share:
    """What `unwind run` starts."""
    client, metrics, owner = surroundings.client, surroundings.metrics, surroundings.shards
    namespace = surroundings.namespace
    caches = Caches(client, metrics=metrics)
    program = shutil.which("helm")
    helm = Helm(Path(program)) if program else None
    plugins = tuple(installed())
    return Share(
        controllers=(
            caches,
            Profiles(client, caches, owner=owner, metrics=metrics),
            Summaries(
                client,
                caches,
                namespace=namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=plugins,
                helm=helm,
            ),
            Teardowns(
                client,
                caches,
                namespace=namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=plugins,
                # Without the program a release is held, and says so.
                releases=HelmReleases(helm),
            ),
            Configurations(client, caches, namespace=namespace, owner=owner, metrics=metrics),
        )
    )
