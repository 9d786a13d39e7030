"""May a cluster be upgraded, as far as its add-ons are concerned? (pure)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown
from unwind.api.names import KUBERNETES_VERSIONS_ANNOTATION
from unwind.gating.rules import versions
from unwind.gating.rules.addons import failures
from unwind.gating.rules.wording import several, steady
from unwind.hooks import LONGEST, Wait

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unwind.gating.rules.addons import AddOn


def before(add_ons: Iterable[AddOn], to: Iterable[str]) -> Wait | None:
    """Wait while an add-on fails, or is not for one of the versions that the cluster becomes on its way."""
    wanted = list(dict.fromkeys(to))
    against = [why for one in add_ons for why in _against(one, wanted)]
    if not against:
        return None
    return Wait(f"waiting for add-ons that stand against an upgrade: {several(against)}", LONGEST)


def _against(it: AddOn, to: list[str]) -> Iterator[str]:
    if failing := failures(it):
        yield f"{it.profile} fails ({steady(several(failing))}), and whoever looks after it has to mend it"
    if it.versions is None:
        return
    supported = versions.read(it.versions)
    if isinstance(supported, Unknown):
        yield (
            f"{it.profile} says {KUBERNETES_VERSIONS_ANNOTATION}: {steady(repr(it.versions))}, which cannot be read, "
            "and whoever looks after it has to write it like >=1.29 <1.34"
        )
        return
    for text in to:
        version = versions.number(text)
        if isinstance(version, Unknown):
            yield f"nobody can tell whether {it.profile} supports {text!r}, which is no version"
        elif not supported.has(version):
            yield (
                f"{it.profile} supports Kubernetes {it.versions.strip()} and not {text}, and whoever looks after it "
                f"has to change it and its {KUBERNETES_VERSIONS_ANNOTATION}"
            )
