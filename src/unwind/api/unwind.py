"""Unwind's own records: `unwind.dev/v1alpha1` Teardown and Inventory."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Annotated

import msgspec

from unwind.api import durations
from unwind.api.fields import ATOMIC, Model, Unknown, Word, doc, listed, rule
from unwind.api.meta import Condition, ObjectMeta, ObjectRef
from unwind.api.policies import OnDeadline
from unwind.api.resources import Resource

GROUP = "unwind.dev"
TEARDOWNS = Resource(GROUP, "v1alpha1", "teardowns", "Teardown", namespaced=False)
INVENTORIES = Resource(GROUP, "v1alpha1", "inventories", "Inventory")

BLOCKERS_SHOWN = 20
ENTRIES_IN_A_CHUNK = 500


class Cause(Word):
    """What made something go away."""

    CLUSTER_DELETED = "ClusterDeleted"
    UNJOINED = "Unjoined"
    WITHDRAWN = "Withdrawn"
    """A profile no longer matches, or was deleted."""
    REQUESTED = "Requested"
    """`unwind delete`."""


class Effort(Word):
    """How much is done for a step's removal."""

    LEAVE = "Leave"
    """Nothing: its objects are released."""
    TRY = "Try"
    """It is tried, and given up after a while: the target does not wait for it."""
    ENFORCE = "Enforce"
    """It is never given up without a deadline or a person."""


class Phase(Word):
    """How far a teardown has come."""

    PENDING = "Pending"
    """The plan is not made yet."""
    REMOVING = "Removing"
    HELD = "Held"
    """It cannot go on by itself: the blockers say who must act."""
    COMPLETE = "Complete"
    RELEASED = "Released"
    """The target was let go before everything was removed: the ledger says what is left."""
    TARGET_GONE = "TargetGone"
    """The target vanished before everything was verified."""
    REFUSED = "Refused"
    """Nothing was deleted, and nothing will be: the conditions say why. Only of what somebody asked for."""

    @property
    def finished(self) -> bool:
        return self in (Phase.COMPLETE, Phase.RELEASED, Phase.TARGET_GONE, Phase.REFUSED)


class StepState(Word):
    """How far one step has come."""

    WAITING = "Waiting"
    """For the steps that depend on it."""
    REMOVING = "Removing"
    REMOVED = "Removed"
    """All of it was seen to be absent."""
    LEFT = "Left"
    """On purpose: its objects are released."""
    GIVEN_UP = "GivenUp"


class Step(Model, frozen=True, kw_only=True):
    """One thing to remove for the target."""

    name: Annotated[str, doc("What it is called in this plan.", required=True, minLength=1, maxLength=512)] = ""
    object: Annotated[ObjectRef, doc("The object that stands for it: a ClusterSummary, a Work.", required=True)] = (
        ObjectRef()
    )
    effort: Annotated[str, doc("How much is done for it.", required=True, choice=Effort)] = ""
    needs: Annotated[tuple[str, ...], doc("The steps that it depends on, which go after it.", **ATOMIC)] = ()
    wave: Annotated[int, doc("When it goes, beginning with 1.", required=True, minimum=1)] = 0
    objects: Annotated[int, doc("How many objects it put there.", minimum=0)] = 0


class Plan(Model, frozen=True, kw_only=True):
    """The steps and their order. It is frozen: what is edited afterwards does not change it."""

    steps: Annotated[tuple[Step, ...], doc("All steps.", **ATOMIC)] = ()
    waves: Annotated[int, doc("How many waves there are.", minimum=0)] = 0
    objects: Annotated[int, doc("How many objects go.", minimum=0)] = 0
    warnings: Annotated[tuple[str, ...], doc("What a person should know of it.", **ATOMIC)] = ()


class TeardownSpec(Model, frozen=True, kw_only=True):
    """What goes away, and how."""

    title: Annotated[str, doc("The target, for people.", required=True, minLength=1, maxLength=512)] = ""
    target: Annotated[ObjectRef, doc("What is going away.", required=True)] = ObjectRef()
    cause: Annotated[str, doc("What made it go.", required=True, choice=Cause)] = ""
    requested_at: Annotated[datetime | None, doc("When: the target's deletionTimestamp. Deadlines count from it.")] = (
        None
    )
    requested_by: Annotated[str, doc("Who asked for it, as far as the API server was able to say so.")] = ""
    deadline: Annotated[
        str,
        doc("How long it may take (1h30m). Without one it waits for ever.", pattern=durations.PATTERN, minLength=1),
    ] = ""
    on_deadline: Annotated[
        str, doc("What happens when the deadline has passed.", choice=OnDeadline, default=OnDeadline.HOLD.value)
    ] = OnDeadline.HOLD.value
    plan: Annotated[Plan | None, doc("The steps and their order, once it is made.")] = None


class Blocker(Model, frozen=True, kw_only=True):
    """What is waited for."""

    object: Annotated[ObjectRef, doc("The object that is in the way.", required=True)] = ObjectRef()
    step: Annotated[str, doc("The step that waits for it.")] = ""
    reason: Annotated[str, doc("Why it is in the way, as one word.", required=True)] = ""
    message: Annotated[str, doc("Why it is in the way, for people.")] = ""
    actor: Annotated[str, doc("Who must act.")] = ""
    since: Annotated[datetime | None, doc("Since when it is waited for.")] = None


class StepStatus(Model, frozen=True, kw_only=True):
    """How far a step has come."""

    name: Annotated[str, doc("The step.", required=True)] = ""
    state: Annotated[str, doc("How far it has come.", required=True, choice=StepState)] = ""
    removed: Annotated[int, doc("How many of its objects were seen to be absent.", minimum=0)] = 0
    since: Annotated[datetime | None, doc("Since when it is in this state.")] = None
    message: Annotated[str, doc("What there is to know.")] = ""


class Release(Model, frozen=True, kw_only=True):
    """Who let the target go before the end."""

    reason: Annotated[str, doc("Why it was let go, as one word.", required=True)] = ""
    message: Annotated[str, doc("Why, in the words of who did it.")] = ""
    by: Annotated[str, doc("Who did it.", required=True)] = ""
    at: Annotated[datetime | None, doc("When.")] = None


class TeardownStatus(Model, frozen=True, kw_only=True):
    """How far it has come. The full ledger is in the entries of the inventories."""

    phase: Annotated[str, doc("How far it has come.", choice=Phase)] = ""
    observed_generation: Annotated[int, doc("The generation that was looked at.", minimum=0)] = 0
    wave: Annotated[str, doc("The wave under way, of how many (2/3).")] = ""
    removed: Annotated[str, doc("Objects seen to be absent, of how many (40/120).")] = ""
    blocked_by: Annotated[str, doc("The first thing that is waited for, and how many more.")] = ""
    left: Annotated[int, doc("How many objects were knowingly left behind.", minimum=0)] = 0
    started_at: Annotated[datetime | None, doc("When the first step began.")] = None
    finished_at: Annotated[datetime | None, doc("When it ended.")] = None
    steps: Annotated[tuple[StepStatus, ...], doc("Each step.", **ATOMIC)] = ()
    blockers: Annotated[
        tuple[Blocker, ...], doc("What is waited for; the first of them.", maxItems=BLOCKERS_SHOWN, **ATOMIC)
    ] = ()
    release: Annotated[Release | None, doc("Who let the target go before the end.")] = None
    conditions: Annotated[tuple[Condition, ...], doc("What is said of it.", **listed("type"))] = ()

    @property
    def unambiguous_steps(self) -> dict[str, StepStatus]:
        """The steps that status names exactly once. The state of a step that it names twice is unknown."""
        found = {step.name: step for step in self.steps}
        if len(found) < len(self.steps):
            counts = Counter(step.name for step in self.steps)
            found = {name: step for name, step in found.items() if counts[name] == 1}
        return found


# Another target would be another teardown, and a plan that changes is none; but `unwind delete` asks for a teardown
# before anybody has made its plan, so a plan may come once.
_FROZEN = [
    rule(
        "self.target == oldSelf.target && self.cause == oldSelf.cause && self.title == oldSelf.title",
        "what is torn down cannot be changed: delete this Teardown and write another",
    ),
    rule(
        "!has(oldSelf.plan) || (has(self.plan) && self.plan == oldSelf.plan)",
        "the plan is frozen: what is edited afterwards does not change it",
    ),
]


class Teardown(Model, frozen=True, kw_only=True):
    """The record of one deletion being carried out: what goes, in which order, how far it is, what is in the way."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[
        TeardownSpec, doc("What goes away, and how.", required=True, **{"x-kubernetes-validations": _FROZEN})
    ] = TeardownSpec()
    status: Annotated[TeardownStatus, doc("How far it has come.")] = TeardownStatus()

    @property
    def phase(self) -> Phase | Unknown:
        """How far it has come; Pending where nothing is said yet."""
        return Phase.read(self.status.phase) if self.status.phase else Phase.PENDING

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do. A phase that is not known is none of the last ones."""
        phase = self.phase
        return isinstance(phase, Phase) and phase.finished


class EntryState(Word):
    """How far an object has come, there and back."""

    INTENDED = "Intended"
    """Written before the object is created: should we die in between, it is looked for."""
    CONFIRMED = "Confirmed"
    """Created by us, with this uid."""
    REMOVED = "Removed"
    """Seen to be absent."""


class LedgerNote(Model, frozen=True, kw_only=True):
    """Why an object was knowingly left behind."""

    reason: Annotated[str, doc("Why, as one word.", required=True)] = ""
    message: Annotated[str, doc("Why, for people.")] = ""
    by: Annotated[str, doc("Who decided it.", required=True)] = ""
    at: Annotated[datetime | None, doc("When.")] = None


class Entry(Model, frozen=True, kw_only=True):
    """One object that was put somewhere."""

    object: Annotated[ObjectRef, doc("The object, with its uid once it is confirmed.", required=True)] = ObjectRef()
    resource: Annotated[str, doc("Its plural, by which it is asked for.")] = ""
    state: Annotated[str, doc("How far it has come.", required=True, choice=EntryState)] = ""
    source: Annotated[str, doc("What it came from: a policyRef, a chart, a manifest.")] = ""
    order: Annotated[int, doc("The place of its source among the others; they go in reverse.", minimum=0)] = 0
    adopted: Annotated[bool, doc("It was there before: it is updated and released, never deleted.")] = False
    kept: Annotated[bool, doc("It stays when the others go.")] = False
    ledger: Annotated[LedgerNote | None, doc("Why it was knowingly left behind.")] = None
    memo: Annotated[dict[str, str], doc("What must not be done twice while it is deleted.")] = msgspec.field(
        default_factory=dict
    )


class MemberRef(Model, frozen=True, kw_only=True):
    """The cluster that the objects are on."""

    object: Annotated[ObjectRef, doc("The object that stands for it: a Cluster, a SveltosCluster.", required=True)] = (
        ObjectRef()
    )
    system_uid: Annotated[
        str,
        doc(
            "The uid of its kube-system namespace: another cluster may answer at its address.",
            required=True,
            minLength=1,
        ),
    ] = ""


class InventorySpec(Model, frozen=True, kw_only=True):
    """What was put where, by whom."""

    owner: Annotated[ObjectRef, doc("What put it there: a ClusterSummary, a Work.", required=True)] = ObjectRef()
    member: Annotated[MemberRef, doc("Where it was put.", required=True)] = MemberRef()
    chunk: Annotated[int, doc("Which of the owner's chunks this is.", minimum=0, default=0)] = 0
    sealed_for: Annotated[
        str,
        doc(
            "The Teardown that removes it, or has removed it: nothing is added any more.",
            minLength=1,
        ),
    ] = ""
    entries: Annotated[
        dict[str, Entry],
        # A map and not a list: one entry can be patched without sending, or even knowing, the others. Nobody applies
        # it, so the API server need not keep account of who owns which of their fields.
        doc(
            "The objects, each under a key of its own.",
            maxProperties=ENTRIES_IN_A_CHUNK,
            **{"x-kubernetes-map-type": "atomic"},
        ),
    ] = msgspec.field(default_factory=dict)


class Inventory(Model, frozen=True, kw_only=True):
    """The exact objects that one step put on a member, in chunks."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[
        InventorySpec,
        doc(
            "What was put where.",
            required=True,
            **{
                "x-kubernetes-validations": [
                    rule(
                        "self.owner == oldSelf.owner && self.member == oldSelf.member && self.chunk == oldSelf.chunk",
                        "an inventory belongs to one owner and one member for good",
                    ),
                    rule(
                        "!has(oldSelf.sealedFor) || (has(self.sealedFor) && self.sealedFor == oldSelf.sealedFor)",
                        "the inventory is sealed",
                    ),
                ]
            },
        ),
    ] = InventorySpec()
