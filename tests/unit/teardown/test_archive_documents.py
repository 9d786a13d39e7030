"""The documents of an archive."""

from __future__ import annotations

from pathlib import PurePath

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.teardown.archived_teardowns import CLAIM, CLUSTER, OWNER, block, inventory, teardown, with_timeline
from tests.unit.teardown.teardown_courses import at
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.unwind import Cause, Phase, Teardown, TeardownSpec
from unwind.teardown.archive_documents import NotADocumentError, archived, decoded, dropped, encoded, file_name, owners


def test_a_document_has_the_plan_the_timeline_and_the_ledger() -> None:
    document = decoded(encoded(archived(teardown(), [inventory()])))
    assert document.teardown.spec == teardown().spec
    assert document.teardown.status == teardown().status
    assert [(entry.event, entry.step) for entry in document.timeline] == [("StepEnded", "web")]
    [line] = document.ledger
    assert (line.object, line.cluster, line.owner.uid) == (CLAIM, CLUSTER, OWNER.uid)
    assert (line.reason, line.by, line.at, line.kept, line.removed) == ("Forced", "ann", at(58), False, False)
    plain = msgspec.json.decode(encoded(document))
    assert (plain["apiVersion"], plain["kind"]) == ("archive.unwind.dev/v1", "ArchivedTeardown")
    assert (plain["teardown"]["apiVersion"], plain["teardown"]["kind"]) == ("unwind.dev/v1alpha1", "Teardown")


def test_what_others_wrote_into_the_metadata_and_the_memos_of_deleters_are_not_in_it() -> None:
    content = encoded(archived(teardown(), [inventory()]))
    for unwanted in (b"s3cret", b"example.dev/", b"resourceVersion", b"finalizers", b"memo"):
        assert unwanted not in content
    assert b"unwind.dev/team" in content


def test_two_replicas_make_the_same_document() -> None:
    one = teardown()
    later = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, resource_version="99"))
    chunks = [inventory(), inventory("s-2")]
    assert encoded(archived(one, chunks)) == encoded(archived(later, reversed(chunks)))


def test_a_prune_has_only_what_it_left_itself() -> None:
    pruned = teardown(cause=Cause.PRUNED)
    assert archived(pruned, [inventory(noted_at=-5)]).ledger == ()
    assert len(archived(pruned, [inventory(noted_at=5, provisional=True)]).ledger) == 1
    assert len(archived(teardown(), [inventory(noted_at=-5)]).ledger) == 1


def test_entries_that_status_has_no_longer_are_in_the_document_and_missing_ones_are_counted() -> None:
    one = with_timeline(teardown(), block("a", 1, 20), omitted=3)
    document = archived(one, (), more=[block("b", 2, 30)])
    assert [entry.object.name for entry in document.timeline if entry.object] == ["a", "b"]
    assert document.timeline_omitted == 1  # the end of the step is known from its state
    assert archived(one, ()).timeline_omitted == 2


def test_entries_that_a_write_drops_are_found_and_ended() -> None:
    before = with_timeline(teardown(phase=Phase.HELD), block("a", 1, 20), block("b", 2), block("c", 3))
    after = with_timeline(teardown(phase=Phase.HELD), block("c", 3, 40))
    assert dropped(before, after, now=at(50)) == [block("a", 1, 20), block("b", 2, 50)]
    assert dropped(before, before, now=at(50)) == []


def test_only_a_genuine_plan_names_the_owners_of_inventories() -> None:
    assert owners(teardown(), genuine=True) == {"t-1", OWNER.uid}
    assert owners(teardown(), genuine=False) == {"t-1"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not an archived Teardown"),
        (b"\x00\xff", "not an archived Teardown"),
        (b'{"kind": "List"}', "not an archived Teardown"),
        (b'{"kind": "ArchivedTeardown", "apiVersion": "archive.unwind.dev/v1"}', "not an archived Teardown"),
        (b"[" * 100_000, "not an archived Teardown"),
        (encoded(archived(teardown(), ()))[:-200], "not an archived Teardown"),
        (encoded(archived(teardown(), ())).replace(b"dev/v1", b"dev/v9", 1), "unknown version"),
    ],
)
def test_what_is_no_document_is_told_so(content: bytes, told: str) -> None:
    with pytest.raises(NotADocumentError, match=told):
        decoded(content)


def test_a_file_is_named_by_the_target_and_the_uid() -> None:
    assert file_name(teardown(uid="7f1c")) == "cluster_fleet_prod_7f1c.json"
    assert file_name(Teardown(metadata=ObjectMeta(uid="7f1c"))) == "teardown_7f1c.json"


BAD = st.one_of(st.text(), st.sampled_from(["..", "../../etc/passwd", "/etc", ".hidden", "a\x00b", "x" * 500, "-rf"]))


@given(kind=BAD, namespace=BAD, name=BAD, uid=BAD.filter(bool))
def test_no_text_leads_out_of_the_directory(kind: str, namespace: str, name: str, uid: str) -> None:
    one = Teardown(
        metadata=ObjectMeta(uid=uid), spec=TeardownSpec(target=ObjectRef(kind=kind, namespace=namespace, name=name))
    )
    called = file_name(one)
    assert PurePath(called).name == called
    assert not called.startswith((".", "-"))
    assert called.endswith(".json")
    assert called.isascii()
    assert called.isprintable()
    assert len(called) < 255
