"""The handlers of Cluster API's lifecycle hooks: "wait" may come from caches, "proceed" only from a fresh read.

Every valid request is answered with 200 and Success, even on errors: after any other response Cluster API backs off
for a long time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.hooks import Hook
from unwind.capi import hook_protocol, hook_registry
from unwind.errors import UnwindError
from unwind.hooks import LONGEST, Wait
from unwind.kube.errors import ApiError
from unwind.members import targets
from unwind.server.routes import Response, Route, refusal
from unwind.teardown import gate
from unwind.teardown.gate import GateClosed, GateOpen, Verdict
from unwind.teardown.signatures import RecordKeys

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from typing import Any

    from unwind.api.hooks import HookRequest
    from unwind.api.unwind import Teardown
    from unwind.capi.hook_registry import HookRegistry
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.members.targets import AddonTarget
    from unwind.server.routes import Handler, Request
    from unwind.teardown.gate import GateSource

log = logs.get(__name__)

_DELETE = Hook.BEFORE_CLUSTER_DELETE
# Seconds of the timeout that are reserved for the response.
_MARGIN = 0.3
_FILLING = "Unwind is starting: its caches are not synced"
_LATE = "Unwind timed out"
_BUSY = "Unwind is overloaded"
_PAUSED = "the Cluster is paused; nothing is removed until it is unpaused"
_UNEXPECTED = "internal error; see the log of the Unwind manager"


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
    ) -> None:
        """`source`: what blocks a cluster without a Teardown. `namespace`: Unwind's own, which holds the keys of
        records. `hooks`: the hooks announced to Cluster API."""
        self._client = client
        self._caches = caches
        self._source = source
        self._keys = keys or RecordKeys(client, namespace=namespace)
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
        return Route(
            path=hook_protocol.path(hook),
            handler=partial(self._still_waiting, answer) if hook is _DELETE else answer,
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
            answer = _answer(gate.of_summaries(uid, holding))
        else:
            answer = _answer(gate.of_teardown(uid, teardown))
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
        try:
            async with asyncio.timeout(request.remaining - _MARGIN):
                verdict = await self._read(target)
        except TimeoutError:
            verdict = gate.closed("the API server timed out")
        except (UnwindError, msgspec.DecodeError) as error:
            log.warning("gate check failed", cluster=str(target), why=str(error))
            # No address and no time: Cluster API writes the message into the Cluster's conditions, where it must stay
            # stable.
            code = f" ({error.code})" if isinstance(error, ApiError) else ""
            verdict = gate.closed(f"cannot read remaining add-ons from the API server{code}")
        if isinstance(verdict, GateOpen) and (wait := await self._rules_wait(_DELETE, asked, request)):
            verdict = GateClosed(wait.why, wait.seconds)
        answer = _answer(verdict)
        if answer is None:
            log.info("cluster deletion allowed", cluster=str(target), uid=target.ref.uid)
        return answer or self._go_on[_DELETE]

    async def _read(self, target: AddonTarget) -> Verdict:
        """The verdict from fresh reads."""
        uid = target.ref.uid
        if teardown := await self._keys.read(uid):
            return gate.of_teardown(uid, teardown)
        standing, lost = await self._source.read(target)
        return gate.of_summaries(uid, standing, lost)

    # Rules

    def _may_go_on(self, hook: Hook, asked: HookRequest, request: Request) -> Response | Coroutine[Any, Any, Response]:
        if hook not in self._hooks:
            return self._go_on[hook]  # disabled, but Cluster API has not rediscovered yet
        if hook.blocks and not (self._source.settled and self._caches.teardowns.synced and self._registry.ready):
            return self._filling[hook]
        return self._ruled(hook, asked, request)

    async def _ruled(self, hook: Hook, asked: HookRequest, request: Request) -> Response:
        wait = await self._rules_wait(hook, asked, request)
        if wait and not hook.blocks:
            log.warning(
                "wait of a rule ignored, because this hook cannot block",
                hook=hook.value,
                cluster=str(_ref(asked)),
                why=wait.why,
            )
        return hook_protocol.wait(hook, wait.why, wait.seconds) if wait else self._go_on[hook]

    async def _rules_wait(self, hook: Hook, asked: HookRequest, request: Request) -> Wait | None:
        """The combined wait of a hook's rules."""
        waits = [Wait(why, LONGEST) for why in self._registry.broken(hook)]
        if rules := self._registry.rules(hook):
            waits += await hook_registry.ask(
                rules, asked, client=self._client, within=max(0.0, request.remaining - _MARGIN)
            )
        return hook_registry.together(waits)


def _answering(hook: Hook, ask: Any) -> Handler:
    """A handler that decodes the request and never raises."""

    def answer(body: bytes, request: Request) -> Response | Coroutine[Any, Any, Response]:
        try:
            asked = hook_protocol.asked(hook, body)
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
    log.error("hook failed", hook=hook.value, cluster=str(_ref(asked)), exc_info=error)
    return _held(hook, _UNEXPECTED)


def _held(hook: Hook, why: str) -> Response:
    """A wait with a reason that lies in Unwind, not in the cluster."""
    if hook is _DELETE:
        verdict = gate.closed(why)
        return hook_protocol.wait(hook, verdict.message, verdict.seconds)
    return hook_protocol.wait(hook, why, gate.SOON)


def _answer(verdict: Verdict) -> Response | None:
    return hook_protocol.wait(_DELETE, verdict.message, verdict.seconds) if isinstance(verdict, GateClosed) else None


def _ref(asked: HookRequest) -> object:
    return targets.of_capi(asked.cluster)
