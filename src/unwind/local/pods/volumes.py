"""What a container gets from the API server: environment variables and volumes."""

from __future__ import annotations

import base64
import os
import re
from collections import ChainMap
from typing import TYPE_CHECKING, Any

from unwind.api.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Resource
from unwind.errors import UnwindError
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from unwind.kube.client import Client, Object

_VARIABLE = re.compile(r"\$(\$|\(([A-Za-z_][\w.-]*)\))")
_TOKEN_LIFETIME = 3600
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class PodSources:
    """The values that a Pod refers to: its own fields, Secrets, ConfigMaps and tokens."""

    def __init__(self, client: Client, pod: Object, *, ip: str, host_ip: str) -> None:
        self._client = client
        self._pod = pod
        self._fields = {
            "metadata.name": pod["metadata"]["name"],
            "metadata.namespace": self.namespace,
            "metadata.uid": pod["metadata"]["uid"],
            "spec.nodeName": pod["spec"]["nodeName"],
            "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
            "status.podIP": ip,
            "status.podIPs": ip,
            "status.hostIP": host_ip,
            "status.hostIPs": host_ip,
        }

    @property
    def namespace(self) -> str:
        namespace: str = self._pod["metadata"]["namespace"]
        return namespace

    # Environment

    async def environment(self, container: Object, start: Mapping[str, str]) -> dict[str, str]:
        """The variables of a container, `start` among them."""
        found = dict(start)
        for source in container.get("envFrom") or ():
            reference = source.get("configMapRef") or source.get("secretRef")
            resource = CONFIG_MAPS if "configMapRef" in source else SECRETS
            data = await self._data(resource, reference["name"], optional=reference.get("optional", False))
            prefix = source.get("prefix", "")
            found |= {prefix + key: value.decode(errors="replace") for key, value in data.items()}
        for variable in container.get("env") or ():
            value = await self._value(variable, container)
            if value is not None:
                found[variable["name"]] = expand(value, found) if "valueFrom" not in variable else value
        return found

    async def _value(self, variable: Object, container: Object) -> str | None:
        source = variable.get("valueFrom")
        if not source:
            return str(variable.get("value", ""))
        if "fieldRef" in source:
            return self.field(source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            return _limit(container, source["resourceFieldRef"]["resource"])
        resource = CONFIG_MAPS if "configMapKeyRef" in source else SECRETS
        reference = source.get("configMapKeyRef") or source["secretKeyRef"]
        optional = reference.get("optional", False)
        data = await self._data(resource, reference["name"], optional=optional)
        if reference["key"] not in data:
            if optional:
                return None
            raise UnwindError(f"{resource.kind} {self.namespace}/{reference['name']} has no key {reference['key']!r}")
        return data[reference["key"]].decode(errors="replace")

    def field(self, path: str) -> str:
        """A field of the Pod, by the path of a fieldRef."""
        if match := _SUBSCRIPT.fullmatch(path):
            return str((self._pod["metadata"].get(match[1]) or {}).get(match[2], ""))
        if path in ("metadata.labels", "metadata.annotations"):
            values = self._pod["metadata"].get(path.partition(".")[2]) or {}
            return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
        if path not in self._fields:
            raise UnwindError(f"unknown field {path!r} in a fieldRef")
        return str(self._fields[path])

    # Volumes

    async def write(self, volume: Object, directory: Path, *, group: int | None) -> Path | None:
        """Create a volume below a directory, and return its path; None if it is in memory. `group` may read it."""
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            return None
        path = directory / str(volume["name"])
        path.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            path.chmod(0o777)
            return path
        for name, (content, mode) in (await self._contents(volume)).items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            # Replaced, not changed: a container that reads it now gets the former content or the new one.
            new = file.with_name(f".{file.name}.new")
            new.write_bytes(content)
            new.chmod(mode | (0o440 if group is not None else 0))
            if group is not None:
                os.chown(new, 0, group)
            new.replace(file)
        return path

    async def _contents(self, volume: Object) -> dict[str, tuple[bytes, int]]:
        for kind in ("projected", "configMap", "secret", "downwardAPI"):
            if kind in volume:
                source = volume[kind]
                mode = source.get("defaultMode", 0o644)
                parts = source["sources"] if kind == "projected" else [{kind: source}]
                return dict(ChainMap(*[await self._projection(part, mode) for part in reversed(parts)]))
        kinds = ", ".join(sorted(set(volume) - {"name"}))
        raise UnwindError(
            f"cannot mount volume {volume['name']}: {kinds} is not supported on this node",
            remedy="use configMap, downwardAPI, emptyDir, projected or secret",
        )

    async def _projection(self, part: Object, mode: int) -> dict[str, tuple[bytes, int]]:
        [(kind, source)] = part.items()
        if kind == "serviceAccountToken":
            return {source["path"]: ((await self._token(source)).encode(), mode)}
        if kind == "downwardAPI":
            items = source.get("items") or ()
            return {
                item["path"]: (self.field(item["fieldRef"]["fieldPath"]).encode(), item.get("mode", mode))
                for item in items
            }
        resource = CONFIG_MAPS if kind == "configMap" else SECRETS
        name = source.get("name") or source.get("secretName")
        data = await self._data(resource, name, optional=source.get("optional", False))
        if not source.get("items"):
            return {key: (content, mode) for key, content in data.items()}
        return {
            item["path"]: (data[item["key"]], item.get("mode", mode)) for item in source["items"] if item["key"] in data
        }

    async def _token(self, source: Object) -> str:
        metadata, account = self._pod["metadata"], self._fields["spec.serviceAccountName"]
        audience = [source["audience"]] if source.get("audience") else []
        spec = {
            "audiences": audience,
            "expirationSeconds": source.get("expirationSeconds", _TOKEN_LIFETIME),
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
        }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = await self._client.post(SERVICE_ACCOUNTS, account, "token", body, namespace=self.namespace)
        token: str = made["status"]["token"]
        return token

    async def _data(self, resource: Resource, name: str, *, optional: bool) -> dict[str, bytes]:
        try:
            found = await self._client.get(resource, name, namespace=self.namespace)
        except NotFoundError:
            if optional:
                return {}
            raise
        if resource is SECRETS:
            return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
        text = {key: value.encode() for key, value in (found.get("data") or {}).items()}
        return text | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}


def token_lifetime(volume: Object) -> int | None:
    """The seconds after which a token in a volume expires; None if it has none."""
    sources = volume.get("projected", {}).get("sources") or ()
    tokens = [source["serviceAccountToken"] for source in sources if "serviceAccountToken" in source]
    return min((token.get("expirationSeconds", _TOKEN_LIFETIME) for token in tokens), default=None)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; unknown names stay as they are, and `$$(NAME)` stands for `$(NAME)`."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else variables.get(match[2], match[0])

    return _VARIABLE.sub(value, text)


def _limit(container: Object, resource: str) -> str:
    """A resource of a container, as it is written; 0 if there is none."""
    kind, _, name = resource.partition(".")
    resources: dict[str, Any] = container.get("resources") or {}
    return str((resources.get(kind) or {}).get(name, "0"))
