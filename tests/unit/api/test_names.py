"""Names are unique, and Unwind's own names have its prefix."""

from __future__ import annotations

from unwind.api import names


def test_our_finalizers_are_the_ones_that_uninstalling_finds() -> None:
    assert all(finalizer.startswith(names.PREFIX) for finalizer in names.Finalizer)
    foreign = [names.SVELTOS_SUMMARY_FINALIZER, names.KARMADA_WORK_FINALIZER, names.AZURE_FINALIZER]
    assert not [finalizer for finalizer in foreign if finalizer.startswith(names.PREFIX)]


def test_no_name_stands_twice() -> None:
    written = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
    written += [*names.Finalizer]
    # The field manager and the label value are the product's own name.
    twice = {value for value in written if written.count(value) > 1} - {"unwind"}
    assert twice == set()
