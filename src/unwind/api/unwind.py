"""API types of `unwind.dev/v1alpha1`: Teardown and Inventory."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Annotated

import msgspec

from unwind.api import annotation_values
from unwind.api.annotation_values import OnDeadline
from unwind.api.fields import ATOMIC, Model, Unknown, Word, doc, list_map, rule
from unwind.api.meta import Condition, ObjectMeta, ObjectRef
from unwind.api.resources import Resource

GROUP = "unwind.dev"
TEARDOWNS = Resource(GROUP, "v1alpha1", "teardowns", "Teardown", namespaced=False)
INVENTORIES = Resource(GROUP, "v1alpha1", "inventories", "Inventory")

BLOCKERS_SHOWN = 20
TIMELINE_SHOWN = 50
"""How many entries of its timeline a Teardown keeps."""
CANCELLED_SHOWN = 100
"""How many objects of each kind of outcome a cancelled Teardown names."""
REASON_LENGTH = 1000
"""How many characters the reason of a release or of a cancellation may have."""
ENTRIES_IN_A_CHUNK = 500


class Cause(Word):
    """What caused a deletion."""

    CLUSTER_DELETED = "ClusterDeleted"
    UNJOINED = "Unjoined"
    WITHDRAWN = "Withdrawn"
    """A profile no longer matches or was deleted, or a Work was deleted."""
    PRUNED = "Pruned"
    """Objects were removed from a profile or a Work."""
    REQUESTED = "Requested"
    """A user requested it with `unwind delete`."""
    MOVED = "Moved"
    """`clusterctl move` moved the cluster to another management cluster. Nothing is removed from it."""


class Effort(Word):
    """How persistently a step is removed."""

    LEAVE = "Leave"
    """Not removed: its objects are released."""
    TRY = "Try"
    """Best effort: the removal is abandoned after a timeout, and the target does not wait for it."""
    ENFORCE = "Enforce"
    """Enforced: the removal continues until it completes, a deadline passes or a user releases the target."""


class Phase(Word):
    """The phase of a teardown."""

    PENDING = "Pending"
    """The plan is not computed yet."""
    REMOVING = "Removing"
    HELD = "Held"
    """It cannot continue by itself: the blockers say who must act."""
    COMPLETE = "Complete"
    RELEASED = "Released"
    """The target was released before everything was removed: the ledger lists what is left."""
    TARGET_GONE = "TargetGone"
    """The target disappeared before everything was verified absent."""
    MOVED = "Moved"
    """The target was moved to another management cluster: nothing more is removed from it here."""
    REFUSED = "Refused"
    """It deletes nothing: the conditions say why. Only for requested teardowns."""
    CANCELLED = "Cancelled"
    """A user cancelled it: `status.cancelled` says what is gone. Only for requested teardowns."""

    @property
    def finished(self) -> bool:
        return self in (Phase.COMPLETE, Phase.RELEASED, Phase.TARGET_GONE, Phase.MOVED, Phase.REFUSED, Phase.CANCELLED)


class StepState(Word):
    """The state of one step."""

    WAITING = "Waiting"
    """It waits for the steps that depend on it."""
    REMOVING = "Removing"
    REMOVED = "Removed"
    """All of its objects are verified absent."""
    LEFT = "Left"
    """On purpose: its objects are released."""
    GIVEN_UP = "GivenUp"


class Step(Model, frozen=True, kw_only=True):
    """One object to remove for the target, with everything that it deployed."""

    name: Annotated[str, doc("Name of the step in this plan.", required=True, minLength=1, maxLength=512)] = ""
    object: Annotated[
        ObjectRef, doc("The object that the step removes: a ClusterSummary or a Work.", required=True)
    ] = ObjectRef()
    effort: Annotated[str, doc("How persistently the step is removed.", required=True, choice=Effort)] = ""
    effort_from: Annotated[
        str, doc("The TeardownPolicies that decided the effort; empty if the object of the step did.")
    ] = ""
    needs: Annotated[
        tuple[str, ...], doc("Names of the steps that this step depends on. They are removed after it.", **ATOMIC)
    ] = ()
    wave: Annotated[int, doc("The wave that removes the step, starting with 1.", required=True, minimum=1)] = 0
    objects: Annotated[int, doc("Number of objects that the step deployed.", minimum=0)] = 0


class Plan(Model, frozen=True, kw_only=True):
    """The steps and their order. Immutable: later edits of profiles do not change it."""

    steps: Annotated[tuple[Step, ...], doc("All steps.", **ATOMIC)] = ()
    effort: Annotated[
        str,
        doc(
            "The effort for the target as a whole, if no step shows it: Enforce if the removeStrategy of a member is"
            " Required and no Work has to be removed.",
            choice=Effort,
        ),
    ] = ""
    waves: Annotated[int, doc("Number of waves.", minimum=0)] = 0
    objects: Annotated[int, doc("Number of objects to remove.", minimum=0)] = 0
    warnings: Annotated[tuple[str, ...], doc("Warnings about the plan.", **ATOMIC)] = ()


class PolicyRef(Model, frozen=True, kw_only=True):
    """A TeardownPolicy that selected the target when its teardown started."""

    name: Annotated[str, doc("Name of the policy.", required=True)] = ""
    uid: Annotated[str, doc("Unique id of the policy.")] = ""
    generation: Annotated[int, doc("The generation of the policy that the plan follows.", minimum=0)] = 0
    enforces: Annotated[
        bool, doc("The policy enforces steps. Only users who may update it can force-release the target.")
    ] = False


class Gate(Word):
    """What holds the deletion of a Cluster until its teardown is finished."""

    AUTO = "Auto"
    """The hook where Cluster API calls it, otherwise nothing: Hook, or None with a warning."""
    HOOK = "Hook"
    """The hook BeforeClusterDelete. Cluster API calls it for Clusters with a ClusterClass."""
    MACHINES = "Machines"
    """A pre-terminate hook on each Machine of the Cluster."""
    ADMISSION = "Admission"
    """The API server refuses to delete the Cluster, unless Cluster API is paused for it until the gate opens."""
    NONE = "None"
    """Nothing besides the hook, where Cluster API calls it. There is no warning."""


class TeardownSpec(Model, frozen=True, kw_only=True):
    """The desired deletion."""

    title: Annotated[str, doc("The target as text, for display.", required=True, minLength=1, maxLength=512)] = ""
    target: Annotated[ObjectRef, doc("The object that is being deleted.", required=True)] = ObjectRef()
    member: Annotated[
        ObjectRef | None, doc("The cluster that the objects are on, if it is not the target: for withdrawals.")
    ] = None
    cause: Annotated[str, doc("What caused the deletion.", required=True, choice=Cause)] = ""
    requested_at: Annotated[
        datetime | None,
        doc("When deletion was requested: the deletionTimestamp of the target. Deadlines count from it."),
    ] = None
    requested_by: Annotated[str, doc("The user who requested the deletion, if the API server reported it.")] = ""
    deadline: Annotated[
        str,
        doc(
            "Time limit (for example 1h30m). Without it, the teardown waits forever.",
            pattern=annotation_values.DURATION_PATTERN,
            minLength=1,
        ),
    ] = ""
    on_deadline: Annotated[
        str, doc("What to do when the deadline has passed.", choice=OnDeadline, default=OnDeadline.HOLD.value)
    ] = OnDeadline.HOLD.value
    deadline_from: Annotated[
        str, doc("The TeardownPolicies or the annotation that the deadline is from, if a policy selects the target.")
    ] = ""
    on_deadline_from: Annotated[
        str, doc("The TeardownPolicies or the annotation that onDeadline is from, if a policy selects the target.")
    ] = ""
    order_from: Annotated[
        str, doc("The TeardownPolicies that set an order of steps, if one that selects the target does.")
    ] = ""
    policies: Annotated[
        tuple[PolicyRef, ...], doc("The TeardownPolicies that selected the target when its teardown started.", **ATOMIC)
    ] = ()
    gate: Annotated[
        str,
        doc(
            "What holds the deletion, if a TeardownPolicy selected the target: Hook, Machines, Admission or None.",
            choice=Gate,
        ),
    ] = ""
    gate_from: Annotated[str, doc("The TeardownPolicies that the gate is from, and why.")] = ""
    plan: Annotated[Plan | None, doc("The steps and their order, once computed.")] = None


class Blocker(Model, frozen=True, kw_only=True):
    """An object that blocks the teardown."""

    object: Annotated[ObjectRef, doc("The blocking object.", required=True)] = ObjectRef()
    step: Annotated[str, doc("The step that waits for the object.")] = ""
    reason: Annotated[str, doc("Why the object blocks the step, as a CamelCase word.", required=True)] = ""
    message: Annotated[str, doc("Why the object blocks the step, in one sentence.")] = ""
    actor: Annotated[str, doc("Who must act.")] = ""
    since: Annotated[datetime | None, doc("When the wait began.")] = None


class StepStatus(Model, frozen=True, kw_only=True):
    """The status of one step."""

    name: Annotated[str, doc("Name of the step.", required=True)] = ""
    state: Annotated[str, doc("State of the step.", required=True, choice=StepState)] = ""
    removed: Annotated[int, doc("Number of objects that are verified absent.", minimum=0)] = 0
    since: Annotated[datetime | None, doc("When the step entered this state.")] = None
    started_at: Annotated[datetime | None, doc("When the step started: until then it waited for other steps.")] = None
    reason: Annotated[str, doc("Why objects were left, as a CamelCase word, if the step is Left or GivenUp.")] = ""
    message: Annotated[str, doc("Details about the state.")] = ""


class Release(Model, frozen=True, kw_only=True):
    """A release of the target before the teardown completed."""

    reason: Annotated[str, doc("Why the target was released, as a CamelCase word.", required=True)] = ""
    message: Annotated[str, doc("The reason that the user gave.")] = ""
    by: Annotated[str, doc("The user who released the target.", required=True)] = ""
    at: Annotated[datetime | None, doc("When the target was released.")] = None


class TimelineEvent(Word):
    """What an entry of a timeline tells."""

    WAVE_STARTED = "WaveStarted"
    """The first step of a wave started."""
    STEP_ENDED = "StepEnded"
    """All objects of a step are verified absent, or were left."""
    BLOCKED = "Blocked"
    """An object held the teardown, or blocked its step for 10 seconds or more, from `at` until `until`."""
    RELEASED = "Released"
    """The target was released before the teardown completed."""
    FINISHED = "Finished"
    """The teardown ended."""


class TimelineEntry(Model, frozen=True, kw_only=True):
    """One event in the course of a teardown."""

    at: Annotated[datetime | None, doc("When it happened, or began.", required=True)] = None
    event: Annotated[str, doc("What happened.", required=True, choice=TimelineEvent)] = ""
    until: Annotated[
        datetime | None, doc("When the object stopped blocking: it is gone, or was left. Empty while it blocks.")
    ] = None
    wave: Annotated[int, doc("The wave that started.", minimum=0)] = 0
    step: Annotated[str, doc("The step that ended, or that was blocked.")] = ""
    object: Annotated[ObjectRef | None, doc("The object that blocked.")] = None
    reason: Annotated[str, doc("Why the object blocked, the state of the step, or the phase, as a CamelCase word.")] = (
        ""
    )
    message: Annotated[str, doc("Details, in one sentence.")] = ""
    by: Annotated[str, doc("Who released the target, who gave the reason, or who had to act.")] = ""


_SOME_OBJECTS = {"maxItems": CANCELLED_SHOWN, **ATOMIC}


class Cancellation(Model, frozen=True, kw_only=True):
    """What a cancelled deletion has done."""

    at: Annotated[datetime | None, doc("When the deletion was stopped.")] = None
    reason: Annotated[str, doc("Why the deletion was cancelled, if a user gave a reason.")] = ""
    by: Annotated[str, doc("The user who gave the reason. Another user may have deleted the Teardown.")] = ""
    removed: Annotated[int, doc("Number of objects that are gone (verified absent).", minimum=0)] = 0
    deleting: Annotated[
        int, doc("Number of objects that are being deleted. Kubernetes cannot undo that.", minimum=0)
    ] = 0
    unknown: Annotated[int, doc("Number of objects that could not be read.", minimum=0)] = 0
    kept: Annotated[int, doc("Number of objects that stay.", minimum=0)] = 0
    removed_objects: Annotated[tuple[ObjectRef, ...], doc("The first objects that are gone.", **_SOME_OBJECTS)] = ()
    deleting_objects: Annotated[
        tuple[ObjectRef, ...], doc("The first objects that are being deleted.", **_SOME_OBJECTS)
    ] = ()
    unknown_objects: Annotated[
        tuple[ObjectRef, ...], doc("The first objects that could not be read.", **_SOME_OBJECTS)
    ] = ()
    restored: Annotated[
        tuple[str, ...], doc("What was stopped for the deletion, and is as it was before.", **_SOME_OBJECTS)
    ] = ()
    not_restored: Annotated[
        tuple[str, ...], doc("What was stopped for the deletion, and must be restored by a user.", **_SOME_OBJECTS)
    ] = ()


class TeardownStatus(Model, frozen=True, kw_only=True):
    """The observed progress. The entries of the Inventories hold the full ledger."""

    phase: Annotated[str, doc("Phase of the teardown.", choice=Phase)] = ""
    observed_generation: Annotated[int, doc("The generation that the status describes.", minimum=0)] = 0
    wave: Annotated[str, doc("The current wave and the number of waves (2/3).")] = ""
    removed: Annotated[str, doc("Objects verified absent and the number of objects to remove (40/120).")] = ""
    blocked_by: Annotated[str, doc("The first blocker, and how many more there are.")] = ""
    left: Annotated[int, doc("Number of objects that were left behind on purpose.", minimum=0)] = 0
    started_at: Annotated[datetime | None, doc("When the first step started.")] = None
    finished_at: Annotated[datetime | None, doc("When the teardown finished.")] = None
    steps: Annotated[tuple[StepStatus, ...], doc("Status of each step.", **ATOMIC)] = ()
    blockers: Annotated[tuple[Blocker, ...], doc("The first blockers.", maxItems=BLOCKERS_SHOWN, **ATOMIC)] = ()
    timeline: Annotated[
        tuple[TimelineEntry, ...],
        doc(
            "The course of the teardown, in order. Of a long one, the oldest ends of steps are left out.",
            maxItems=TIMELINE_SHOWN,
            **ATOMIC,
        ),
    ] = ()
    timeline_omitted: Annotated[
        int, doc("Number of entries that the timeline no longer has, because there were too many.", minimum=0)
    ] = 0
    release: Annotated[Release | None, doc("Set if the target was released before the teardown completed.")] = None
    cancelled: Annotated[Cancellation | None, doc("Set if the deletion was cancelled.")] = None
    conditions: Annotated[tuple[Condition, ...], doc("Conditions of the teardown.", **list_map("type"))] = ()

    @property
    def unambiguous_steps(self) -> dict[str, StepStatus]:
        """The steps that status names exactly once. The state of a step that it names twice is unknown."""
        found = {step.name: step for step in self.steps}
        if len(found) < len(self.steps):
            counts = Counter(step.name for step in self.steps)
            found = {name: step for name, step in found.items() if counts[name] == 1}
        return found


# The target is immutable, and so is the plan once set. `unwind delete` creates a Teardown before the manager computes
# its plan, so the plan may be set once. The record of a move opens no gate, and becomes that of a deletion with another
# plan if the Cluster is no longer moved.
_MOVE_ENDED = f"oldSelf.cause == '{Cause.MOVED}' && self.cause == '{Cause.CLUSTER_DELETED}'"
_FROZEN = [
    rule(
        "self.target == oldSelf.target && self.title == oldSelf.title"
        f" && (self.cause == oldSelf.cause || ({_MOVE_ENDED}))"
        " && has(self.member) == has(oldSelf.member) && (!has(self.member) || self.member == oldSelf.member)",
        "target, member, cause and title are immutable: delete this Teardown and create another",
    ),
    rule(
        f"!has(oldSelf.plan) || (has(self.plan) && self.plan == oldSelf.plan) || ({_MOVE_ENDED})",
        "the plan is immutable once set",
    ),
]


class Teardown(Model, frozen=True, kw_only=True):
    """The record of one deletion: the target, the plan, its progress and what blocks it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[
        TeardownSpec, doc("The desired deletion.", required=True, **{"x-kubernetes-validations": _FROZEN})
    ] = TeardownSpec()
    status: Annotated[TeardownStatus, doc("The observed progress.")] = TeardownStatus()

    @property
    def phase(self) -> Phase | Unknown:
        """The phase; Pending if status has none yet."""
        return Phase.read(self.status.phase) if self.status.phase else Phase.PENDING

    @property
    def finished(self) -> bool:
        """Whether the teardown has ended. An unknown phase has not."""
        phase = self.phase
        return isinstance(phase, Phase) and phase.finished


class EntryState(Word):
    """The state of an inventory entry."""

    INTENDED = "Intended"
    """Recorded before the object is created, so that it is found after a crash."""
    CONFIRMED = "Confirmed"
    """Created by Unwind, with this uid."""
    REMOVED = "Removed"
    """Verified absent."""


class LedgerNote(Model, frozen=True, kw_only=True):
    """Why an object was left behind on purpose."""

    reason: Annotated[str, doc("Why, as a CamelCase word.", required=True)] = ""
    message: Annotated[str, doc("Why, in one sentence.")] = ""
    by: Annotated[str, doc("Who decided it.", required=True)] = ""
    at: Annotated[datetime | None, doc("When it was decided.")] = None
    provisional: Annotated[
        bool, doc("A prune left the object. It still belongs to its owner: the next removal decides again.")
    ] = False


class Entry(Model, frozen=True, kw_only=True):
    """One deployed object."""

    object: Annotated[ObjectRef, doc("The object, with its uid once it is confirmed.", required=True)] = ObjectRef()
    resource: Annotated[str, doc("Plural name of the object's resource.")] = ""
    state: Annotated[str, doc("State of the object.", required=True, choice=EntryState)] = ""
    source: Annotated[str, doc("Source of the object: a policyRef, a chart or a manifest.")] = ""
    order: Annotated[int, doc("Position of the source. Sources are removed in reverse order.", minimum=0)] = 0
    adopted: Annotated[bool, doc("The object existed before: it is updated and released, never deleted.")] = False
    kept: Annotated[bool, doc("The object is not deleted with the others.")] = False
    ledger: Annotated[LedgerNote | None, doc("Set if the object was left behind on purpose.")] = None
    memo: Annotated[dict[str, str], doc("Actions of its deletion that must not be repeated.")] = msgspec.field(
        default_factory=dict
    )

    @property
    def left(self) -> bool:
        """Whether the object was left behind for good."""
        return self.ledger is not None and not self.ledger.provisional


class MemberRef(Model, frozen=True, kw_only=True):
    """The cluster that the objects are on."""

    object: Annotated[
        ObjectRef, doc("The object that represents the member: a Cluster or a SveltosCluster.", required=True)
    ] = ObjectRef()
    system_uid: Annotated[
        str,
        doc(
            "The uid of the member's kube-system namespace. Detects another cluster at the same address.",
            required=True,
            minLength=1,
        ),
    ] = ""


class InventorySpec(Model, frozen=True, kw_only=True):
    """The objects that one owner deployed on one member."""

    owner: Annotated[ObjectRef, doc("The object that deployed them: a ClusterSummary or a Work.", required=True)] = (
        ObjectRef()
    )
    member: Annotated[MemberRef, doc("The member that they are on.", required=True)] = MemberRef()
    chunk: Annotated[int, doc("Index of this chunk among the owner's Inventories.", minimum=0, default=0)] = 0
    effort: Annotated[
        str,
        doc(
            "How persistently the objects are removed when their cluster is deleted. It counts if the owner is gone."
            " Without it, the objects block the deletion.",
            choice=Effort,
        ),
    ] = ""
    sealed_for: Annotated[
        str,
        doc(
            "The Teardown that removes the objects. No entries are added once it is set.",
            minLength=1,
        ),
    ] = ""
    entries: Annotated[
        dict[str, Entry],
        # A map and not a list: one entry can be patched without sending, or even knowing, the others. It is never
        # applied, so the API server need not track the owners of its fields. Only the manager writes it, and every
        # write of an Inventory costs as much as all its entries: so most of their fields are not in the CRD.
        doc(
            "The objects, each under its own key.",
            brief=True,
            maxProperties=ENTRIES_IN_A_CHUNK,
            **{"x-kubernetes-map-type": "atomic"},
        ),
    ] = msgspec.field(default_factory=dict)


class Inventory(Model, frozen=True, kw_only=True):
    """The objects that one owner deployed on a member, in chunks."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[
        InventorySpec,
        doc(
            "The deployed objects.",
            required=True,
            **{
                "x-kubernetes-validations": [
                    rule(
                        "self.owner == oldSelf.owner && self.member == oldSelf.member && self.chunk == oldSelf.chunk",
                        "owner, member and chunk are immutable",
                    ),
                    rule(
                        "!has(oldSelf.sealedFor) || (has(self.sealedFor) && self.sealedFor == oldSelf.sealedFor)",
                        "sealedFor is immutable once set",
                    ),
                ]
            },
        ),
    ] = InventorySpec()
