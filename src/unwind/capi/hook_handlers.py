"""The handlers of Cluster API's lifecycle hooks: "wait" may come from caches, "proceed" only from a fresh read.

Every valid request is answered with 200 and Success, even on errors: after any other response Cluster API backs off
for a long time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import Counter

from unwind import logs
from unwind.api.hooks import Hook
from unwind.api.names import Reason
from unwind.capi import hook_protocol, hook_rule_calls
from unwind.capi.failed_checks import FailedChecks
from unwind.capi.gate_reader import GateReader
from unwind.errors import UnwindError
from unwind.hooks import LONGEST, Wait
from unwind.kube.errors import ApiError
from unwind.members import targets
from unwind.server.routes import Response, Route, refusal
from unwind.teardown import deletion_gate
from unwind.teardown.deletion_gate import GateClosed, GateFault, GateOpen, Verdict
from unwind.teardown.signatures import RecordKeys

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from typing import Any

    from prometheus_client import CollectorRegistry

    from unwind.api.hooks import HookRequest
    from unwind.api.unwind import Teardown
    from unwind.capi.hook_registry import HookRegistry
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.events import Recorder
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.members.targets import AddonTarget
    from unwind.server.routes import Handler, Request
    from unwind.teardown.deletion_gate import GateSource

log = logs.get(__name__)

_DELETE = Hook.BEFORE_CLUSTER_DELETE
# Seconds of the timeout that are reserved for the response.
_MARGIN = 0.3
_FILLING = "Unwind is starting and has not read all objects yet; Cluster API asks again"
_LATE = "Unwind did not answer in time; Cluster API asks again"
_BUSY = "Unwind has too many requests at once; Cluster API asks again"
_PAUSED = "the Cluster is paused; nothing is removed until it is unpaused"
_UNEXPECTED = "internal error; see the log of the Unwind manager"


class GateMetrics:
    """Counts the answers to hooks: go on, or wait."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = Counter(
            "unwind_gate_answers",
            "Answers to lifecycle hooks of Cluster API: GoOn, or Wait with a reason.",
            ["hook", "answer"],
            registry=registry,
        )

    def counted(self, hook: Hook, handler: Handler, *, go_on: Response) -> Handler:
        """The handler, with its answers counted. `go_on`: the one answer that does not wait."""
        # Looked up once: hooks are called thousands of times while clusters wait.
        went_on, waits = (self._answers.labels(hook.value, answer).inc for answer in ("GoOn", "Wait"))

        def count(said: Response) -> Response:
            (went_on if said is go_on else waits)()
            return said

        async def count_later(said: Coroutine[Any, Any, Response]) -> Response:
            return count(await said)

        def answer(body: bytes, request: Request) -> Response | Coroutine[Any, Any, Response]:
            said = handler(body, request)
            return count(said) if isinstance(said, Response) else count_later(said)

        return answer


class HookHandlers:
    """Handles Discovery and all hooks."""

    def __init__(
        self,
        client: Client,
        caches: ClusterCaches,
        source: GateSource,
        *,
        namespace: str,
        registry: HookRegistry,
        hooks: Iterable[Hook],
        keys: RecordKeys | None = None,
        recorder: Recorder | None = None,
        metrics: GateMetrics | None = None,
    ) -> None:
        """`source`: what blocks a cluster without a Teardown. `namespace`: Unwind's own, which holds the keys of
        records. `hooks`: the hooks announced to Cluster API. `recorder`: for Events about checks that failed."""
        self._client = client
        self._caches = caches
        self._source = source
        self._keys = keys or RecordKeys(client, namespace=namespace)
        self._reader = GateReader(client, self._keys, source, registry)
        self._failed_checks = FailedChecks(client, caches.teardowns, self._keys, recorder)
        self._metrics = metrics
        self._registry = registry
        self._hooks = tuple(hooks)
        self._go_on = {hook: hook_protocol.go_on(hook) for hook in Hook}
        self._filling = {hook: _held(hook, _FILLING) for hook in Hook}
        self._paused = _held(_DELETE, _PAUSED)
        self._answers: dict[str, Response] = {}
        """Cached responses by cluster uid, valid while the Teardown is unchanged. Never "proceed"."""
        caches.teardowns.subscribe(self._teardown_changed)

    def routes(self) -> tuple[Route, ...]:
        """The routes of all hooks."""
        discovery = Route(
            path=hook_protocol.DISCOVERY_PATH, handler=self._discover, name="discovery", timeout=hook_protocol.TIMEOUT
        )
        return discovery, *(self._route(hook) for hook in Hook)

    def _route(self, hook: Hook) -> Route:
        ask = self._may_be_deleted if hook is _DELETE else partial(self._may_go_on, hook)
        answer = _answering(hook, ask)
        handler = partial(self._still_waiting, answer) if hook is _DELETE else answer
        return Route(
            path=hook_protocol.path(hook),
            handler=self._metrics.counted(hook, handler, go_on=self._go_on[hook]) if self._metrics else handler,
            name=hook.value,
            timeout=hook_protocol.TIMEOUT,
            late=_held(hook, _LATE),
            busy=_held(hook, _BUSY),
        )

    def _discover(self, body: bytes, _: Request) -> Response:
        # Also before the caches are synced: Cluster API's manager does not start without a response.
        try:
            return hook_protocol.discovered(body, self._hooks)
        except hook_protocol.MalformedError as error:
            return refusal(400, str(error))

    # BeforeClusterDelete

    def _still_waiting(
        self, answer: Handler, body: bytes, request: Request
    ) -> Response | Coroutine[Any, Any, Response]:
        """The cached response if nothing has changed: a thousand waiting clusters cost one lookup each."""
        kept = self._answers.get(hook_protocol.glance(_DELETE, body))
        return kept if kept and self._synced else answer(body, request)

    def _may_be_deleted(self, asked: HookRequest, request: Request) -> Response | Coroutine[Any, Any, Response]:
        if not (self._synced and self._registry.ready):
            return self._filling[_DELETE]
        if asked.cluster.paused:
            return self._paused
        if not self._keys.known:
            return self._confirmed(asked, request)  # which reads them fresh
        uid = asked.cluster.metadata.uid
        teardown = self._keys.chosen(self._caches.teardowns.cache.by("uid", uid), uid)
        if teardown is None:
            holding = self._source.holding(targets.of_capi(asked.cluster))
            answer = _answer(deletion_gate.of_summaries(uid, holding))
        else:
            answer = _answer(deletion_gate.of_teardown(uid, teardown))
            if answer:
                self._answers[uid] = answer
        return answer or self._confirmed(asked, request)

    @property
    def _synced(self) -> bool:
        return self._caches.teardowns.synced and self._source.synced

    def _teardown_changed(self, change: Change[Teardown]) -> None:
        for item in (change.old, change.new):
            if item:
                self._answers.pop(item.spec.target.uid, None)

    async def _confirmed(self, asked: HookRequest, request: Request) -> Response:
        """The response if no cache knows of anything that blocks the cluster."""
        target = targets.of_capi(asked.cluster)
        frozen = self._frozen(target)
        unverified: list[GateFault] = []
        # If the plan decides anyway, time is left for the rules.
        within = request.remaining - _MARGIN if frozen is None else request.remaining / 2
        verdict, unenforced, fault = await self._read_within(target, within)
        if fault and frozen:
            verdict, unenforced = GateOpen(), True
            unverified.append(GateFault(Reason.READ_FAILED, fault))
        if isinstance(verdict, GateOpen):
            # Rules that cannot be loaded do not block a cluster on which nothing is enforced. Rules that answer do.
            broken = self._registry.broken(_DELETE)
            unverified += [GateFault(Reason.NOT_LOADED, why) for why in broken] if unenforced else []
            if wait := await self._rules_wait(_DELETE, asked, request, () if unenforced else broken):
                verdict = GateClosed(wait.why, wait.seconds)
        answer = _answer(verdict)
        if answer is None:
            if unverified:
                await self._failed_checks.report(target, unverified, within=request.remaining - _MARGIN)
            log.info("cluster deletion allowed", cluster=str(target), uid=target.ref.uid)
        return answer or self._go_on[_DELETE]

    def _frozen(self, target: AddonTarget) -> Teardown | None:
        """The record in the cache if its plan shows that nothing is enforced."""
        uid = target.ref.uid
        found = self._keys.chosen(self._caches.teardowns.cache.by("uid", uid), uid) if self._keys.known else None
        return found if deletion_gate.is_unenforced(uid, found) else None

    async def _read_within(self, target: AddonTarget, within: float) -> tuple[Verdict, bool, str]:
        """The verdict from fresh reads; whether it shows that nothing is enforced; and which read failed, if one did.

        No address and no time: Cluster API writes the message into the Cluster's conditions, where it must stay stable.
        """
        current = ""

        def reading(what: str) -> None:
            nonlocal current
            current = what

        try:
            async with asyncio.timeout(within):
                verdict, unenforced = await self._reader.read(target, reading=reading)
        except TimeoutError:
            fault = f"cannot read {current}: the API server timed out; Cluster API asks again"
        except (UnwindError, msgspec.DecodeError) as error:
            log.warning("gate check failed", cluster=str(target), why=str(error))
            code = f" ({error.code})" if isinstance(error, ApiError) else ""
            fault = f"cannot read {current} from the API server{code}; see the log of the Unwind manager"
        else:
            return verdict, unenforced, ""
        return deletion_gate.closed(fault), False, fault

    # Rules

    def _may_go_on(self, hook: Hook, asked: HookRequest, request: Request) -> Response | Coroutine[Any, Any, Response]:
        if hook not in self._hooks:
            return self._go_on[hook]  # disabled, but Cluster API has not rediscovered yet
        if hook.blocks and not (self._source.settled and self._caches.teardowns.synced and self._registry.ready):
            return self._filling[hook]
        return self._ruled(hook, asked, request)

    async def _ruled(self, hook: Hook, asked: HookRequest, request: Request) -> Response:
        wait = await self._rules_wait(hook, asked, request, self._registry.broken(hook))
        if wait and not hook.blocks:
            log.warning(
                "wait of a rule ignored, because this hook cannot block; use the rule for a hook that can",
                hook=hook.value,
                cluster=str(_ref(asked)),
                why=wait.why,
            )
        return hook_protocol.wait(hook, wait.why, wait.seconds) if wait else self._go_on[hook]

    async def _rules_wait(self, hook: Hook, asked: HookRequest, request: Request, broken: Iterable[str]) -> Wait | None:
        """The combined wait of a hook's rules. `broken`: why others cannot be asked, which blocks as well."""
        waits = [Wait(why, LONGEST) for why in broken]
        if rules := self._registry.rules(hook):
            waits += await hook_rule_calls.ask_rules(
                rules, asked, client=self._client, within=max(0.0, request.remaining - _MARGIN)
            )
        return hook_rule_calls.together(waits)


def _answering(hook: Hook, ask: Any) -> Handler:
    """A handler that decodes the request and never raises."""

    def answer(body: bytes, request: Request) -> Response | Coroutine[Any, Any, Response]:
        try:
            asked = hook_protocol.hook_request(hook, body)
        except hook_protocol.MalformedError as error:
            return refusal(400, str(error))
        try:
            said: Response | Coroutine[Any, Any, Response] = ask(asked, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, Cluster API gets an answer
            return _unexpected(hook, asked, error)
        return said if isinstance(said, Response) else _never_failing(hook, asked, said)

    return answer


async def _never_failing(hook: Hook, asked: HookRequest, said: Coroutine[Any, Any, Response]) -> Response:
    try:
        return await said
    except Exception as error:  # noqa: BLE001 - whatever it is, Cluster API gets an answer
        return _unexpected(hook, asked, error)


def _unexpected(hook: Hook, asked: HookRequest, error: Exception) -> Response:
    log.error(
        "hook failed, Cluster API will retry",
        hook=hook.value,
        cluster=str(_ref(asked)),
        remedy="report this as a bug, with the traceback",
        exc_info=error,
    )
    return _held(hook, _UNEXPECTED)


def _held(hook: Hook, why: str) -> Response:
    """A wait with a reason that lies in Unwind, not in the cluster."""
    if hook is _DELETE:
        verdict = deletion_gate.closed(why)
        return hook_protocol.wait(hook, verdict.message, verdict.seconds)
    return hook_protocol.wait(hook, why, deletion_gate.SOON)


def _answer(verdict: Verdict) -> Response | None:
    return hook_protocol.wait(_DELETE, verdict.message, verdict.seconds) if isinstance(verdict, GateClosed) else None


def _ref(asked: HookRequest) -> object:
    return targets.of_capi(asked.cluster)
