"""Signatures of the manager's own Teardowns: an HMAC with a key that its replicas share in a Secret.

A Teardown opens a gate, and its plan deletes objects. So the manager acts only on Teardowns that it wrote itself, even
if other users may create Teardowns. A Teardown without a valid signature neither opens a gate nor closes one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.names import MANAGED_BY_LABEL, MANAGED_BY_UNWIND, RECORD_KEY_SECRET, SIGNATURE_ANNOTATION
from unwind.api.resources import SECRETS
from unwind.api.unwind import TEARDOWNS, Cause, Teardown, TeardownSpec
from unwind.errors import UnwindError
from unwind.kube.decoding import Key
from unwind.kube.errors import AlreadyExistsError, NotFoundError
from unwind.kube.updates import difference
from unwind.kube.workqueue import JITTER, Backoff

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unwind.api.unwind import Plan
    from unwind.kube.cache import Change
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.kube.informers import Informer

log = logs.get(__name__)

_KEY_BYTES = 32
_FIRST = "key-1"
# A record whose name is taken gets another name, which cannot be predicted without the key.
_NAMES = 8
_REMEMBERED = 10_000
_HOLD = next(field.default for field in msgspec.structs.fields(TeardownSpec) if field.name == "on_deadline")
_RETRY = Backoff(first=0.2, limit=10.0)


class RecordKeys:
    """The signing keys of one manager: all of them verify, and the one with the greatest name signs.

    They are read once, and again when a signature does not match: the keys may have been rotated.
    """

    def __init__(self, client: Client, *, namespace: str) -> None:
        """`namespace`: the manager's own, where the Secret is."""
        self._client = client
        self._namespace = namespace
        self._keys: dict[str, bytes] = {}
        self._reading = asyncio.Lock()
        self._verdicts: dict[str, tuple[int, str, bool]] = {}
        self._changed = asyncio.Event()

    @property
    def known(self) -> bool:
        """Whether the keys were read. Until then no record can be verified."""
        return bool(self._keys)

    # Reading the keys

    async def load(self, *, anew: bool = False) -> None:
        """Read the keys. If there is no Secret, restore it with the keys that are known here, or create a key.

        Raises UnwindError if the Secret cannot be read, or holds no key: then no record is verified or rejected.
        """
        before = self._keys
        async with self._reading:
            if self._keys and (not anew or self._keys is not before):
                return  # another task has just read them
            found = _keys(await self._secret())
            if not found:
                raise UnwindError(
                    f"cannot verify Teardowns: Secret {self._namespace}/{RECORD_KEY_SECRET} holds no valid key",
                    remedy="restore the Secret, or delete it to have unfinished Teardowns planned again",
                )
            if found != self._keys:
                self._verdicts.clear()
            self._keys = found

    async def until_known(self) -> None:
        """Return when the keys were read. Retries until then."""
        failures = 0
        while not self.known:
            try:
                await self.load()
            except UnwindError as error:
                failures += 1
                log.warning("record keys not read, will retry", why=str(error))
                await asyncio.sleep(_RETRY.after(failures, JITTER))

    def follow(self, changes: Informer[Metadata]) -> None:
        """Make `run` read the keys again when their Secret changes, and restore the Secret when it is deleted."""
        changes.subscribe(self._secret_changed)

    async def run(self) -> None:
        """Keep the keys current, until cancelled."""
        while True:
            await self.until_known()
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.load(anew=True)
            except UnwindError as error:
                log.warning(
                    f"Secret {RECORD_KEY_SECRET} not read, its known keys stay in use, will retry", why=str(error)
                )

    def _secret_changed(self, change: Change[Metadata]) -> None:
        if change.key == Key(self._namespace, RECORD_KEY_SECRET):
            self._changed.set()

    async def _secret(self) -> Object:
        try:
            return await self._client.get(SECRETS, RECORD_KEY_SECRET, namespace=self._namespace)
        except NotFoundError:
            pass
        keys = self._keys or {_FIRST: secrets.token_bytes(_KEY_BYTES)}
        body = {
            "apiVersion": SECRETS.api_version,
            "kind": SECRETS.kind,
            "metadata": {
                "name": RECORD_KEY_SECRET,
                "namespace": self._namespace,
                "labels": {MANAGED_BY_LABEL: MANAGED_BY_UNWIND},
            },
            "data": {name: base64.b64encode(key).decode() for name, key in keys.items()},
        }
        try:
            made = await self._client.create(SECRETS, body)
        except AlreadyExistsError:
            return await self._client.get(SECRETS, RECORD_KEY_SECRET, namespace=self._namespace)
        log.info("record key created", object=f"Secret {self._namespace}/{RECORD_KEY_SECRET}", restored=self.known)
        return made

    # Signing and verifying

    def signed(self, teardown: Teardown) -> Teardown:
        """The Teardown with the signature of its name and spec. The keys must be known."""
        value = f"{self._namespace}:{_mac(self._keys[max(self._keys)], teardown)}"
        meta = teardown.metadata
        annotations = meta.annotations | {SIGNATURE_ANNOTATION: value}
        return msgspec.structs.replace(teardown, metadata=msgspec.structs.replace(meta, annotations=annotations))

    def with_plan(self, teardown: Teardown, plan: Plan) -> Object:
        """The merge patch that adds a plan to a Teardown, with the new signature."""
        planned = msgspec.structs.replace(teardown, spec=msgspec.structs.replace(teardown.spec, plan=plan))
        return self.changed_spec(teardown, planned)

    def changed_spec(self, teardown: Teardown, wanted: Teardown) -> Object:
        """The merge patch that changes the spec of a Teardown, with the new signature."""
        annotations = {SIGNATURE_ANNOTATION: self.signed(wanted).metadata.annotations[SIGNATURE_ANNOTATION]}
        changes = difference(msgspec.to_builtins(teardown.spec), msgspec.to_builtins(wanted.spec))
        return {"metadata": {"annotations": annotations}, "spec": changes}

    def genuine(self, teardown: Teardown) -> bool:
        """Whether this manager signed a Teardown as it is, according to the loaded keys."""
        meta = teardown.metadata
        signature = meta.annotations.get(SIGNATURE_ANNOTATION, "")
        before = self._verdicts.get(meta.uid)
        # A plan may have thousands of steps, and the status changes often. The spec is unchanged if the generation is.
        if before and meta.uid and before[:2] == (meta.generation, signature):
            return before[2]
        verdict = verify(self._keys, self._namespace, teardown)
        if meta.uid and self._keys:
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            self._verdicts[meta.uid] = (meta.generation, signature, verdict)
        return verdict

    async def verified(self, teardown: Teardown) -> bool:
        """Like `genuine`, but the keys are read again before a signature is rejected."""
        await self.load()
        if self.genuine(teardown):
            return True
        await self.load(anew=True)
        return self.genuine(teardown)

    def is_of_another(self, teardown: Teardown) -> bool:
        """Whether the signature names another manager. Such a Teardown is ignored."""
        namespace, colon, _ = teardown.metadata.annotations.get(SIGNATURE_ANNOTATION, "").partition(":")
        return bool(colon) and namespace != self._namespace

    def names(self, uid: str) -> Iterator[str]:
        """The names that the record of a target may have, the default one first."""
        yield uid
        key = self._keys[max(self._keys)]
        for number in range(2, _NAMES + 1):
            yield f"{uid}-{hmac.digest(key, f'name/{uid}/{number}'.encode(), hashlib.sha256).hex()[:10]}"

    def chosen(self, found: list[Teardown], uid: str) -> Teardown | None:
        """The genuine record of a target among the Teardowns that name it, requests excluded; None if there is none."""
        mine = (
            teardown for teardown in found if teardown.spec.target.uid == uid and teardown.spec.cause != Cause.REQUESTED
        )
        return next((item for item in mine if self.genuine(item)), None)

    async def read(self, uid: str) -> Teardown | None:
        """The genuine record of a target, read from the API server; None if there is none."""
        await self.load()
        for name in self.names(uid) if uid else ():
            try:
                found = await self._client.get(TEARDOWNS, name, type=Teardown)
            except NotFoundError as error:
                about = error.status.details
                if about is None or (about.name, about.kind, about.group) != (name, TEARDOWNS.plural, TEARDOWNS.group):
                    raise  # this 404 is not about the Teardown
                return None
            if await self.verified(found):
                return found
        return None


def verify(keys: Mapping[str, bytes], namespace: str, teardown: Teardown) -> bool:
    """Whether one of these keys has signed the name and the spec of a Teardown (pure)."""
    said, colon, mac = teardown.metadata.annotations.get(SIGNATURE_ANNOTATION, "").partition(":")
    if not colon or said != namespace or not mac.isascii():
        return False
    return any(hmac.compare_digest(_mac(key, teardown), mac) for key in keys.values())


def _mac(key: bytes, teardown: Teardown) -> str:
    spec = teardown.spec
    # Fields with default values are omitted, so that it makes no difference whether the API server set a default, or a
    # later version of Unwind added the field. msgspec recognizes a default by identity, which a decoded string lacks.
    if spec.on_deadline == _HOLD:
        spec = msgspec.structs.replace(spec, on_deadline=_HOLD)
    signed = msgspec.json.encode([teardown.metadata.name, spec], order="sorted")
    return hmac.digest(key, signed, hashlib.sha256).hex()


def _keys(secret: Object) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, value in (secret.get("data") or {}).items():
        try:
            key = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            continue
        if len(key) >= _KEY_BYTES:
            found[name] = key
    return found
