"""Joins a cluster as a member: creates objects on both sides, rolls back on failure; and removes them from the member.

An interrupted join is resumed by running the same command again.
"""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from unwind.api import names
from unwind.api.karmada import CLUSTERS, TOKEN_KEY, Cluster
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACES, SECRETS, SERVICE_ACCOUNTS, Resource
from unwind.errors import UnwindError
from unwind.karmada import join_objects, tokens
from unwind.karmada.join_objects import is_marked, name_of
from unwind.karmada.join_refusals import existing_member, may_be_older, refuse_foreign
from unwind.kube import kubeconfig
from unwind.kube.discovery import Discovery
from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.members import contents, credentials, targets

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.karmada.join_objects import JoinOptions
    from unwind.kube.client import Client, Object
    from unwind.kube.kubeconfig import ClusterConnection

_CONTROL_PLANE, _MEMBER = "control plane", "member"
# A new service account and its permissions reach the server's caches a moment after they were written.
_BELIEVED_WITHIN = 15.0
# After Ctrl-C the command must end soon, also if a server does not answer.
_TAKEN_BACK_WITHIN = 45.0
_NO_TOKEN = "(created by the join)"  # noqa: S105 - not a token


class JoinResult(StrEnum):
    """The result for one object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


class JoinedObject(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one object, for display and JSON."""

    kind: str
    name: str
    where: str
    """The member, or the control plane."""
    result: JoinResult

    def __str__(self) -> str:
        return f"{self.kind} {self.name} in the {self.where} {self.result}"


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A member, and what was created for it."""

    name: str
    id: str
    """Its identity: the uid of its kube-system namespace."""
    done: tuple[JoinedObject, ...] = ()


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What existed before."""

    home: str
    identity: str
    cluster: Cluster | None


async def rehearse(home: Client, member: Client, options: JoinOptions) -> list[Object]:
    """The objects that a join would create, those of the member first (dry run). Raises UnwindError if join would
    refuse."""
    found = await _look(home, member, options)
    mark = {names.JOINED_LABEL: found.home}
    secret = join_objects.credentials_secret(options, member.connection, "", home=found.home)
    secret["stringData"] = {TOKEN_KEY: _NO_TOKEN}
    del secret["data"][TOKEN_KEY]
    return [
        join_objects.member_namespace(options.namespace, labels=mark),
        *(body for _, body in join_objects.member_objects(options, home=found.home)),
        join_objects.member_namespace(options.namespace, labels=mark),
        secret,
        join_objects.member_cluster(options, member.connection, identity=found.identity),
        join_objects.member_namespace(f"{names.KARMADA_EXECUTION_NAMESPACE}{options.name}"),
    ]


async def join(
    home: Client, member: Client, options: JoinOptions, *, announce: Callable[[str], None] = lambda _: None
) -> Joined:
    """Join a cluster to a control plane (`home`). Rolls back what it created if it fails."""
    found = await _look(home, member, options)
    work = _Work(home, member, options, found, announce)
    try:
        await work.carry_out()
    except (Exception, asyncio.CancelledError) as error:
        if left := await work.take_back():
            told = str(error) or "interrupted"
            raise UnwindError(
                f"{told}; left behind: {', '.join(left)}", remedy="run `unwind join` again to resume"
            ) from error
        raise
    return Joined(name=options.name, id=found.identity, done=tuple(work.done))


async def take_out(client: Client, name: str, namespace: str, *, joined_to: str) -> list[str]:
    """Remove Unwind's credentials from a member; returns what was deleted. Objects without Unwind's label stay.

    `client`: of the member, with credentials other than those that are removed. `joined_to`: the uid of the control
    plane's kube-system namespace. The namespace is deleted as well if Unwind created it and it is empty.
    """
    gone = []
    for resource, called, where in (
        # Permissions first: if the rest fails, the remaining credentials are worthless.
        (CLUSTER_ROLE_BINDINGS, join_objects.role(name), None),
        (CLUSTER_ROLES, join_objects.role(name), None),
        (SERVICE_ACCOUNTS, join_objects.account(name), namespace),
        (NAMESPACES, namespace, None),
    ):
        try:
            found = await client.get(resource, called, namespace=where)
            if not is_marked(found, joined_to):
                continue
            if resource is NAMESPACES and await _inside(client, called):
                continue
            # With the version that was read as a precondition: another client may take it over at this moment.
            version = found["metadata"]["resourceVersion"]
            await client.delete(resource, called, uid=found["metadata"]["uid"], namespace=where, version=version)
        except (NotFoundError, ConflictError):
            continue  # it is gone, or belongs to another client by now
        gone.append(f"{resource.kind} {where}/{called}" if where else f"{resource.kind} {called}")
    return gone


class _Work:
    """The progress of one join."""

    def __init__(
        self, home: Client, member: Client, options: JoinOptions, found: _Found, announce: Callable[[str], None]
    ) -> None:
        self._home = home
        self._member = member
        self._options = options
        self._found = found
        self._announce = announce
        self._made: list[tuple[Client, Resource, Object]] = []
        self._unsure: list[str] = []
        """Requests without an answer: the objects may or may not exist."""
        self.done: list[JoinedObject] = []

    async def carry_out(self) -> None:
        options, home, member = self._options, self._found.home, self._member
        mark = {names.JOINED_LABEL: home}
        await self._ensure(member, NAMESPACES, join_objects.member_namespace(options.namespace, labels=mark))
        for resource, body in join_objects.member_objects(options, home=home):
            await self._ensure(member, resource, body)
        await self._ensure(self._home, NAMESPACES, join_objects.member_namespace(options.namespace, labels=mark))
        secret = await self._ensure_secret()
        cluster = await self._ensure_cluster()
        await self._ensure_owner(secret, cluster)
        # Labelled with its owner: one that another cluster of this name left behind is a different object.
        label = {names.MEMBER_LABEL: cluster["metadata"]["uid"]}
        execution = join_objects.member_namespace(f"{names.KARMADA_EXECUTION_NAMESPACE}{options.name}", labels=label)
        await self._ensure(self._home, NAMESPACES, execution)

    async def take_back(self) -> list[str]:
        """Roll back what was created here, newest first; returns what may be left."""
        left = [*self._unsure]
        try:
            async with asyncio.timeout(_TAKEN_BACK_WITHIN):
                while self._made:
                    client, resource, made = self._made[-1]
                    try:
                        await self._delete(client, resource, made)
                    except (ApiError, UnreachableError) as error:
                        left.append(f"{self._called(client, resource, made)} ({error})")
                    self._made.pop()
        except TimeoutError:
            left += [self._called(*item) for item in reversed(self._made)]
        return left

    async def _delete(self, client: Client, resource: Resource, made: Object) -> None:
        meta, called = made["metadata"], self._called(client, resource, made)
        if resource is NAMESPACES and (inside := await _inside(client, meta["name"])):
            self._announce(f"keeping {called}: it contains {contents.first_names(inside)}")
            return
        try:
            await client.delete(resource, meta["name"], uid=meta["uid"], namespace=meta.get("namespace"))
        except (NotFoundError, ConflictError):
            return  # another client was faster
        self._announce(f"deleted {called}")

    async def _ensure(self, client: Client, resource: Resource, body: Object) -> Object:
        """The object, created or found. A found object must belong to this join, except a namespace."""
        if made := await self._create(client, resource, body):
            return made
        meta = body["metadata"]
        found = await client.get(resource, meta["name"], namespace=meta.get("namespace"))
        refuse_foreign(self._where(client), resource, found, home=self._found.home)
        if resource is NAMESPACES:
            self._report(client, resource, found, JoinResult.UNCHANGED)
            return found
        if _has(found, body):
            self._report(client, resource, found, JoinResult.UNCHANGED)
            return found
        now = await client.apply(resource, {**body, "metadata": {**meta, "uid": found["metadata"]["uid"]}})
        self._report(client, resource, now, JoinResult.CHANGED)
        return now

    async def _ensure_secret(self) -> Object:
        """The Secret with a token that is verified to work."""
        options, member = self._options, self._member
        found = await _get(self._home, SECRETS, options.name, options.namespace)
        if found:
            refuse_foreign(_CONTROL_PLANE, SECRETS, found, home=self._found.home)
            if await self._serves(found):
                self._report(self._home, SECRETS, found, JoinResult.UNCHANGED)
                return found
        token = await tokens.request_token(member, namespace=options.namespace, account=options.account)
        body = join_objects.credentials_secret(options, member.connection, token, home=self._found.home)
        await tokens.prove(self._connection(body), identity=self._found.identity, within=_BELIEVED_WITHIN)
        if found is None:
            if made := await self._create(self._home, SECRETS, body):
                return made
            raise UnwindError(
                f"cannot join {options.name}: another join of it is running",
                remedy="wait for it, then run `unwind join` again",
            )
        patch = {"metadata": {"uid": found["metadata"]["uid"]}, "data": body["data"]}
        written = await self._home.patch(SECRETS, options.name, patch, namespace=options.namespace)
        self._report(self._home, SECRETS, written, JoinResult.CHANGED)
        return written

    async def _serves(self, secret: Object) -> bool:
        """Whether the token of an earlier join still works."""
        try:
            connection = self._connection(secret)
            await tokens.prove(connection, identity=self._found.identity)
        except (ApiError, UnreachableError):
            return False
        token = tokens.read_claims(base64.b64decode(secret["data"][TOKEN_KEY]).decode())
        return token is None or not token.due(datetime.now(UTC))

    def _connection(self, secret: Object) -> ClusterConnection:
        """The same connection that the control plane will use."""
        body = join_objects.member_cluster(self._options, self._member.connection, identity=self._found.identity)
        return credentials.connection(targets.of_karmada(msgspec.convert(body, Cluster)), secret)

    async def _ensure_cluster(self) -> Object:
        options, connection = self._options, self._member.connection
        before = self._found.cluster
        if before is None:
            made = await self._create(
                self._home, CLUSTERS, join_objects.member_cluster(options, connection, identity=self._found.identity)
            )
            if made is None:
                raise UnwindError(
                    f"cannot join {options.name}: another join of it is running",
                    remedy="wait for it, then run `unwind join` again",
                )
            await self._refuse_twins(msgspec.convert(made, Cluster))
            return await self._strategy_once(made)
        body = join_objects.member_cluster(options, connection, identity=self._found.identity)
        annotations = body["metadata"].get("annotations") or {}
        patch = {
            "metadata": {"uid": before.metadata.uid, "annotations": annotations},
            # Obsolete fields are removed, above all insecureSkipTLSVerification.
            "spec": {
                "insecureSkipTLSVerification": None,
                "proxyURL": None,
                **join_objects.connection_fields(options, connection),
                **join_objects.option_fields(options),
            },
        }
        now = await self._strategy_once(await self._home.patch(CLUSTERS, options.name, patch))
        same = now["metadata"]["generation"] == before.metadata.generation
        self._report(self._home, CLUSTERS, now, JoinResult.UNCHANGED if same else JoinResult.CHANGED)
        return now

    async def _strategy_once(self, cluster: Object) -> Object:
        """If the field is served, the annotation with the same value is not needed."""
        strategy = self._options.remove_strategy
        if strategy is None or cluster["spec"].get("removeStrategy") != strategy:
            return cluster
        patch = {
            "metadata": {
                "uid": cluster["metadata"]["uid"],
                "annotations": {names.REMOVE_STRATEGY_ANNOTATION: None},
            }
        }
        return await self._home.patch(CLUSTERS, cluster["metadata"]["name"], patch)

    async def _refuse_twins(self, ours: Cluster) -> None:
        """Two joins of the same cluster under two names may both find none at first; the later one gives up."""
        others = [cluster for cluster in await _clusters(self._home) if may_be_older(cluster, ours)]
        existing_member(self._options, others, identity=ours.spec.id, server=ours.spec.api_endpoint)

    async def _ensure_owner(self, secret: Object, cluster: Object) -> None:
        """Make the Cluster the owner of the Secret, so that it is deleted with it."""
        meta = cluster["metadata"]
        owner = {
            "apiVersion": CLUSTERS.api_version,
            "kind": CLUSTERS.kind,
            "name": meta["name"],
            "uid": meta["uid"],
        }
        keys = {key: secret["metadata"][key] for key in ("name", "namespace", "uid")}
        # Server-side apply: the manager, which has seen the Cluster by now, writes to the Secret as well.
        await self._home.apply(
            SECRETS,
            {"apiVersion": "v1", "kind": SECRETS.kind, "metadata": {**keys, "ownerReferences": [owner]}},
        )

    async def _create(self, client: Client, resource: Resource, body: Object) -> Object | None:
        """The new object; None if one with its name exists."""
        try:
            made = await client.create(resource, body)
        except AlreadyExistsError:
            return None
        except (UnreachableError, asyncio.CancelledError):
            self._unsure.append(f"{self._called(client, resource, body)} (may exist: the API server did not answer)")
            raise
        self._made.append((client, resource, made))
        self._report(client, resource, made, JoinResult.CREATED)
        return made

    def _report(self, client: Client, resource: Resource, found: Object, result: JoinResult) -> None:
        one = JoinedObject(kind=resource.kind, name=name_of(found), where=self._where(client), result=result)
        self.done.append(one)
        self._announce(str(one))

    def _called(self, client: Client, resource: Resource, found: Object) -> str:
        return f"{resource.kind} {name_of(found)} in the {self._where(client)}"

    def _where(self, client: Client) -> str:
        return _MEMBER if client is self._member else _CONTROL_PLANE


async def _look(home: Client, member: Client, options: JoinOptions) -> _Found:
    """The identity of both clusters, and what exists. Raises UnwindError if the cluster cannot be joined."""
    options.check()
    if urlsplit(member.connection.server).scheme != "https":
        raise UnwindError(
            f"cannot join the cluster: {kubeconfig.shown(member.connection.server)} is not an https address",
            remedy="use an https address in --cluster-kubeconfig",
        )
    try:
        identity = await member.cluster_uid()
    except (ApiError, UnreachableError) as error:
        raise UnwindError(
            f"cannot join {options.name}: the cluster at {kubeconfig.shown(member.connection.server)}: {error}",
            remedy="check --cluster-kubeconfig, then run `unwind join` again",
        ) from error
    try:
        uid = await home.cluster_uid()
        clusters = await _clusters(home)
    except (ApiError, UnreachableError) as error:
        raise UnwindError(
            f"cannot join {options.name} to the control plane at {home.connection.server}: {error}",
            remedy="check --kubeconfig and --context, then run `unwind join` again",
        ) from error
    cluster = existing_member(options, clusters, identity=identity, server=member.connection.server)
    made = join_objects.member_objects(options, home=uid)
    # Whatever can be refused is refused before anything is written.
    for client, resource, name, namespace in (
        (member, NAMESPACES, options.namespace, None),
        *((member, kind, it["metadata"]["name"], it["metadata"].get("namespace")) for kind, it in made),
        (home, NAMESPACES, options.namespace, None),
        (home, SECRETS, options.name, options.namespace),
        (home, NAMESPACES, f"{names.KARMADA_EXECUTION_NAMESPACE}{options.name}", None),
    ):
        if there := await _get(client, resource, name, namespace):
            refuse_foreign(_MEMBER if client is member else _CONTROL_PLANE, resource, there, home=uid)
    return _Found(home=uid, identity=identity, cluster=cluster)


async def _clusters(home: Client) -> list[Cluster]:
    try:
        return msgspec.convert(await home.list(CLUSTERS), list[Cluster])
    except ApiError as error:
        if error.code != 404:
            raise
        raise UnwindError(
            f"the {CLUSTERS.kind} CRD of {CLUSTERS.group} is not installed",
            remedy="run `unwind install --features karmada` first, with all other features that are in use",
        ) from error


async def _get(client: Client, resource: Resource, name: str, namespace: str | None) -> Object | None:
    try:
        return await client.get(resource, name, namespace=namespace)
    except NotFoundError:
        return None


def _has(found: Object, body: Object) -> bool:
    """Whether an object already has these contents."""
    return all(found.get(field) == value for field, value in body.items() if field != "metadata")


async def _inside(client: Client, namespace: str) -> list[contents.Content]:
    """What users or programs created in a namespace."""
    found = await contents.in_namespace(client, Discovery(client), namespace)
    return [item for item in found if not contents.made_by_the_server(item)]
