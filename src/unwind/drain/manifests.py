"""Rights that a drain needs. On members, Unwind has the rights of their kubeconfig."""

from __future__ import annotations

from unwind.api.features import Feature
from unwind.api.rights import Contribution
from unwind.companions.manifests import CREDENTIALS

DRAIN = Contribution(name="drain", features=frozenset({Feature.DRAIN}), everywhere=(CREDENTIALS,))
