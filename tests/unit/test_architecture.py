"""docs/architecture.md: citations in the code lead to a section of it, and its table of fields is complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from unwind.api import names
from unwind.api.rights import Setting
from unwind.install.manifests import manifests

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs" / "architecture.md").read_text()
PATH = PAGE.partition("### One path for every deletion")[2].partition("\n## ")[0]
WHERE = PAGE.partition("### Where is …?")[2].partition("\n### ")[0]
FIELDS = PAGE.partition("## Fields of other systems' objects")[2].partition("\n## ")[0]
CITATION = re.compile(r"docs/architecture\.md,([^)]*)\)")

# Written by people, who ask for something with them.
REQUESTS = {
    names.ADOPT_ANNOTATION,
    names.DEADLINE_ANNOTATION,
    names.DELETE_MODE_ANNOTATION,
    names.DELETE_POLICY_ANNOTATION,
    names.DEPENDS_ON_ANNOTATION,
    names.EXTERNAL_LABEL,
    names.EXTERNAL_MEMBER_ANNOTATION,
    names.EXTERNAL_NAMESPACES_ANNOTATION,
    names.KUBERNETES_VERSIONS_ANNOTATION,
    names.NOTIFICATION_KEY_LABEL,
    names.ON_DEADLINE_ANNOTATION,
    names.RESELECT_ANNOTATION,
    names.SCALE_TO_ZERO_ANNOTATION,
    names.TAKE_ALONG_ANNOTATION,
    names.VOLUMES_ANNOTATION,
    names.WAIT_FOR_DEPENDENTS_ANNOTATION,
}
# On Unwind's own kinds, and on its Leases.
OWN_OBJECTS = {
    names.CANCEL_REASON_ANNOTATION,
    names.CANCEL_REASON_BY_ANNOTATION,
    names.DEMO_LABEL,
    names.FURTHER_LABEL,
    names.MAX_OBJECTS_ANNOTATION,
    names.NOTIFIED_ANNOTATION,
    names.RESOURCE_ANNOTATION,
    names.SET_ASIDE_ANNOTATION,
    names.SET_ASIDE_LABEL,
    names.SIGNATURE_ANNOTATION,
    names.POD_UID_ANNOTATION,
    names.SPREAD_ANNOTATION,
    names.VERSION_ANNOTATION,
    names.Finalizer.INVENTORY.value,
    names.Finalizer.TEARDOWN.value,
}


def test_every_citation_names_a_section() -> None:
    sections = {heading.lower() for heading in re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)}
    cited: dict[str, Path] = {}
    for directory in ("src", "tests", "bench"):
        for path in (HOME / directory).rglob("*.py"):
            if path != Path(__file__):
                for section in CITATION.findall(path.read_text()):
                    cited[" ".join(section.replace("#", " ").split()).lower()] = path
    assert cited, "the pattern finds nothing"
    assert {section: str(path) for section, path in cited.items() if section not in sections} == {}


def test_the_page_names_functions_of_the_path_of_deletion_that_exist() -> None:
    known, _ = functions_and_members()
    named = set(re.findall(r"(\w+\.\w+)\(\)", PATH))
    assert "KubernetesEnd.delete" in named
    assert named - known == set()


def test_the_page_names_members_of_our_classes_that_exist() -> None:
    """Names such as `Class.method`, anywhere in the page; a class that we do not have is of another system."""
    functions, members = functions_and_members()
    classes = {name.partition(".")[0] for name in members}
    named = {name for name in re.findall(r"`([A-Z]\w*\.\w+)(?:\(\))?`", PAGE) if name.partition(".")[0] in classes}
    assert "ClusterMoves.was_moved" in named
    assert named - functions - members == set()


def functions_and_members() -> tuple[set[str], set[str]]:
    """The functions and methods in our code (`module.function`, `Class.method`), and the fields of its classes."""
    functions: set[str] = set()
    members: set[str] = set()
    for path in (HOME / "src").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
                functions.update(f"{node.name}.{method.name}" for method in methods)
                fields: list[ast.expr] = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
                fields += [target for item in node.body if isinstance(item, ast.Assign) for target in item.targets]
                members.update(f"{node.name}.{field.id}" for field in fields if isinstance(field, ast.Name))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.add(f"{path.stem}.{node.name}")
    return functions, members | {name for name in functions if name[0].isupper()}


def test_every_file_in_the_table_of_behaviours_exists_and_every_package_is_in_it() -> None:
    home = HOME / "src" / "unwind"
    files = re.findall(r"`([\w/]+/\w+\.py)`", WHERE)
    assert len(files) > 100, "the pattern finds them"
    assert [file for file in files if not (home / file).is_file()] == []
    packages = {path.parent.name for path in home.glob("*/__init__.py")}
    # Not the programs around it: they are for demonstrations and for control planes on one machine.
    assert packages - {file.partition("/")[0] for file in files} == {"demo", "local"}


def test_every_name_that_we_write_on_other_objects_is_in_the_table() -> None:
    ours = {
        value
        for key, value in vars(names).items()
        if key.endswith(("_LABEL", "_ANNOTATION")) and value.startswith(names.PREFIX)
    } | {item.value for item in names.Finalizer}
    missing = {name for name in ours - REQUESTS - OWN_OBJECTS if f"`{name}" not in FIELDS}
    assert missing == set()


def test_every_kind_that_the_manager_may_change_is_in_the_table() -> None:
    """Not its own kinds, nor what it may change by name only: those are the objects that it was installed with."""
    kinds = {
        "clusters": "| Cluster (`",
        "clusterconfigurations": "| ClusterConfiguration ",
        "clusterprofiles": "| ClusterProfile, Profile ",
        "clustersummaries": "| ClusterSummary ",
        "events": "Events about it",
        "extensionconfigs": "| ExtensionConfig ",
        "helmreleases": "| Kustomization, HelmRelease ",
        "helmreleaseproxies": "| HelmReleaseProxy ",
        "kustomizations": "| Kustomization, HelmRelease ",
        "machines": "| Machine ",
        "namespaces": "| Namespace ",
        "profiles": "| ClusterProfile, Profile ",
        "secrets": "| Secret ",
        # Questions to the API server; nothing is stored.
        "subjectaccessreviews": "",
        "tokenreviews": "",
        "works": "| Work ",
    }
    changed = {
        resource.partition("/")[0]
        for manifest in manifests(Setting())
        if manifest["kind"] == "ClusterRole"
        for rule in manifest.get("rules", ())
        if not rule.get("resourceNames") and not set(rule["verbs"]) <= {"get", "list", "watch"}
        for group in rule.get("apiGroups", ())
        if group != "unwind.dev"
        for resource in rule["resources"]
    }
    assert changed - kinds.keys() == set()
    assert [kind for kind in changed if kinds[kind] not in FIELDS] == []
