"""The controllers of add-ons, as parts of a process."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.addons.helm import Helm
from unwind.addons.helm_removing import HelmReleases
from unwind.api.resources import VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.controllers.addons import admitting
from unwind.controllers.addons.configurations import Configurations
from unwind.controllers.addons.profiles import Profiles
from unwind.controllers.addons.summaries import Summaries
from unwind.controllers.addons.summary_steps import SummarySteps
from unwind.controllers.teardowns.controller import Teardowns
from unwind.controllers.teardowns.requested import Requested
from unwind.deleting.builtin import BUILTIN
from unwind.deleting.registry import installed
from unwind.installing.addons import profile_rules
from unwind.kube.server_time import ServerClock
from unwind.parts import Share
from unwind.removing import shielded
from unwind.routes import Trusting

if TYPE_CHECKING:
    from unwind.controllers.addons.caches import Caches
    from unwind.controllers.teardowns.signing import RecordKeys
    from unwind.gating.arming import Gate
    from unwind.parts import Surroundings


def contribute(surroundings: Surroundings, caches: Caches, gate: Gate, keys: RecordKeys) -> Share:
    """What `unwind run` starts. `keys`: by which our Teardowns are recognised."""
    client, metrics, owner = surroundings.client, surroundings.metrics, surroundings.shards
    # Deadlines count from times that the API server wrote.
    clock = ServerClock(client.time)
    namespace = surroundings.namespace
    program = shutil.which("helm")
    helm = Helm(Path(program), replica=owner.identity) if program else None
    plugins = tuple(installed())
    return Share(
        controllers=(
            caches,
            Profiles(client, caches, owner=owner, metrics=metrics, gate=gate, recorder=surroundings.recorder),
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
                sources=(SummarySteps(client, caches, releases=HelmReleases(helm)),),
                best_effort=surroundings.best_effort,
                keep=surroundings.keep_teardowns,
                keys=keys,
                clock=clock,
                recorder=surroundings.recorder,
            ),
            Requested(
                client,
                caches,
                namespace=namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=plugins,
                refusals=partial(shielded.refusals, home=namespace),
                keep=surroundings.keep_teardowns,
                keys=keys,
                clock=clock,
            ),
            Configurations(client, caches, namespace=namespace, owner=owner, metrics=metrics),
        ),
        routes=(admitting.route(partial(admitting.existing, client)),),
        trusting=(Trusting(VALIDATING_WEBHOOK_CONFIGURATIONS, profile_rules(namespace)),),
    )
