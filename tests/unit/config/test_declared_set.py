"""The set of declared experiments: its versions, and what decides between files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.config import (
    DeclaredSet,
    ExperimentSettings,
    MetricSpec,
    archive_experiment,
    compare_file,
    complete_backfill,
    declare_experiments,
    decode_declared_set,
    describe_set_changes,
    encode_declared_set,
    experiments_digest,
    rebuilt_set,
    remove_experiment,
    replace_file_experiments,
)
from monitor.errors import UsageError

OLD = ExperimentSettings(
    "old",
    "control",
    {"control": 0.5, "treatment": 0.5},
    metrics=(MetricSpec("dcg@5", "dcg", 5),),
    gain={0.0: 0.0, 4.0: 1},
)
NEW = replace(OLD, name="new")


def _file_set(*experiments: ExperimentSettings, current: DeclaredSet | None = None, at_ms: int = 1) -> DeclaredSet:
    return replace_file_experiments(current or DeclaredSet(), experiments, "a file", at_ms)


def test_a_set_is_stored_as_json_with_all_settings() -> None:
    """Workers without the file read the settings from the store."""
    declared_set = _file_set(NEW, replace(OLD, gain="exp2"), current=_file_set(OLD), at_ms=2)
    assert decode_declared_set(encode_declared_set(declared_set)) == declared_set


def test_the_first_set_needs_no_backfill() -> None:
    """No event was read before."""
    declared_set = _file_set(OLD, NEW)
    assert [(experiment.number, experiment.is_filling) for experiment in declared_set.experiments] == [
        (1, False),
        (2, False),
    ]


def test_an_added_experiment_is_filled_and_the_others_stay_as_they_are() -> None:
    """Events may have been read before the experiment was declared."""
    first = _file_set(OLD)
    second = _file_set(OLD, NEW, current=first, at_ms=2)
    added = second.find("new")
    assert second.find("old") == first.find("old")
    assert added is not None
    assert (added.number, added.is_filling, added.since_version, added.declared_ms) == (2, True, 2, 2)


def test_a_changed_definition_gets_a_number_and_shows_the_old_one_until_it_is_filled() -> None:
    """The change is recorded with its time."""
    changed = _file_set(replace(OLD, gain="exp2"), current=_file_set(OLD), at_ms=5).find("old")
    assert changed is not None
    assert (changed.number, changed.definition_version, changed.is_filling) == (2, 2, True)
    assert (changed.served.number, changed.served.settings, changed.superseded_numbers) == (1, OLD, (1,))
    assert [change.kind for change in changed.changes] == ["definition"]


def test_a_definition_that_is_changed_again_before_it_is_filled_still_shows_the_complete_one() -> None:
    """Both earlier numbers are superseded."""
    second = _file_set(replace(OLD, gain="exp2"), current=_file_set(OLD), at_ms=5)
    changed = _file_set(replace(OLD, gain="linear"), current=second, at_ms=6).find("old")
    assert changed is not None
    assert (changed.number, changed.served.number, changed.superseded_numbers) == (3, 1, (1, 2))


def test_a_filled_experiment_shows_its_new_numbers() -> None:
    """With the time from which on nothing is missing."""
    second = _file_set(replace(OLD, gain="exp2"), current=_file_set(OLD), at_ms=5)
    filled = complete_backfill(second, 2, 77, 6).find("old")
    assert filled is not None
    assert (filled.served.number, filled.is_filling, filled.complete_since_ms) == (2, False, 77)


def test_changed_criteria_need_no_number() -> None:
    """Stored sums do not depend on criteria."""
    changed = _file_set(replace(OLD, decision=replace(OLD.decision, mde=0.5)), current=_file_set(OLD), at_ms=5).find(
        "old"
    )
    assert changed is not None
    assert (changed.number, changed.settings.decision.mde, changed.is_filling) == (1, 0.5, False)


def test_an_experiment_that_the_file_lacks_is_archived_and_counted_anew_if_it_comes_back() -> None:
    """Its events were skipped meanwhile."""
    archived = _file_set(NEW, current=_file_set(OLD, NEW), at_ms=5)
    assert [experiment.name for experiment in archived.counted] == ["new"]
    again = _file_set(OLD, NEW, current=archived, at_ms=6).find("old")
    assert again is not None
    assert (again.archived_ms, again.number, again.served.number, again.is_filling) == (None, 3, 1, True)


def test_numbers_are_never_used_again() -> None:
    """Rows of a removed experiment may remain for a while."""
    removed = remove_experiment(_file_set(OLD, current=_file_set(OLD, NEW), at_ms=5), "new", "a command", 6)
    assert removed.find("new") is None
    again = _file_set(OLD, NEW, current=removed, at_ms=7).find("new")
    assert again is not None
    assert again.number == 3


def test_commands_and_files_declare_different_experiments() -> None:
    """Each experiment has one source."""
    both = declare_experiments(_file_set(OLD), [NEW], "a command", 2)
    assert [experiment.name for experiment in _file_set(OLD, current=both, at_ms=3).counted] == ["old", "new"]
    with pytest.raises(UsageError, match=r"a file: the experiment \"new\" was declared by a command"):
        _file_set(OLD, NEW, current=both)
    with pytest.raises(UsageError, match="is declared in a configuration file"):
        declare_experiments(both, [OLD], "a command", 3)
    with pytest.raises(UsageError, match="is declared in a configuration file"):
        archive_experiment(both, "old", "a command", 3)
    assert [experiment.name for experiment in archive_experiment(both, "new", "a command", 3).counted] == ["old"]


def test_only_archived_experiments_are_removed() -> None:
    """Nothing that is counted is deleted by mistake."""
    with pytest.raises(UsageError, match="is not archived"):
        remove_experiment(_file_set(OLD), "old", "a command", 2)


def test_the_digest_does_not_depend_on_the_order() -> None:
    """But on every setting."""
    assert experiments_digest([OLD, NEW]) == experiments_digest([NEW, OLD])
    assert experiments_digest([OLD]) != experiments_digest([replace(OLD, decision=replace(OLD.decision, mde=0.5))])


@pytest.mark.parametrize(
    ("digest", "previous", "is_in_use", "decision"),
    [
        ("c", None, True, "unchanged"),
        ("d", None, True, "replace"),
        ("b", None, True, "follow"),
        ("b", None, False, "replace"),
        ("d", "c", True, "replace"),
        ("b", "c", True, "replace"),
        ("d", "b", True, "conflict"),
        ("a", "b", True, "follow"),
        ("c", "b", True, "unchanged"),
        ("d", "b", False, "replace"),
    ],
)
def test_the_newest_file_wins_and_two_new_files_are_a_conflict(
    digest: str, previous: str | None, decision: str, *, is_in_use: bool
) -> None:
    """An older file wins again once nobody has the newer one."""
    current = DeclaredSet(version=3, digest="c", superseded=("a", "b"))
    assert compare_file(current, digest, previous, is_in_use=is_in_use) == decision


def test_the_changes_of_a_file_are_told_before_they_are_made() -> None:
    """Added, archived and changed experiments, each in a sentence."""
    current = _file_set(OLD, NEW)
    changed = replace(OLD, gain="exp2", decision=replace(OLD.decision, mde=0.5))
    added, archived, redefined = sorted(
        describe_set_changes(current, _file_set(changed, replace(OLD, name="added"), current=current, at_ms=2))
    )
    assert added.startswith("added: added")
    assert archived.startswith("new: archived")
    assert redefined.startswith("old: mde not set → 0.5; old.gain:")
    assert describe_set_changes(current, _file_set(OLD, NEW, current=current, at_ms=2)) == []


def test_a_rebuild_keeps_recorded_shares_dropped_variants_and_the_experiments_of_commands() -> None:
    """But not a variant that the file lacks by mistake: the command reports it."""
    three = replace(OLD, variants={"control": 0.4, "treatment": 0.3, "late": 0.3})
    dropped = _file_set(OLD, current=_file_set(three), at_ms=5)
    active = declare_experiments(dropped, [NEW], "a command", 6)
    rebuilt = rebuilt_set(active, [OLD], "a rebuild", 7)
    assert [(each.name, each.number, each.source) for each in rebuilt.experiments] == [
        ("old", 1, "file"),
        ("new", 2, "command"),
    ]
    before, after = active.find("old"), rebuilt.find("old")
    assert before is not None
    assert after is not None
    assert after.settings == before.settings
    assert after.changes == before.changes
    assert rebuilt.superseded == (experiments_digest([three]),)
    misspelt = replace(OLD, variants={"control": 0.5, "treatmnt": 0.5})
    (found, _) = rebuilt_set(active, [misspelt], "a rebuild", 7).experiments
    assert sorted(found.settings.variants) == ["control", "late", "treatmnt"]


def test_an_archived_experiment_comes_back_with_its_dropped_variants() -> None:
    """The shown numbers of before end with the archiving."""
    three = replace(OLD, variants={"control": 0.4, "treatment": 0.3, "late": 0.3})
    dropped = _file_set(OLD, NEW, current=_file_set(three, NEW), at_ms=5)
    archived = _file_set(NEW, current=dropped, at_ms=6)
    again = _file_set(OLD, NEW, current=archived, at_ms=9).find("old")
    assert again is not None
    assert sorted(again.settings.variants) == ["control", "late", "treatment"]
    assert again.definition_since_ms == 6


def test_numbers_that_are_archived_before_they_are_filled_stay_marked_as_incomplete() -> None:
    """Unless a complete definition is shown instead."""
    added = _file_set(OLD, NEW, current=_file_set(OLD), at_ms=2)
    archived = _file_set(OLD, current=added, at_ms=3).find("new")
    assert archived is not None
    assert (archived.is_filling, archived.archived_ms) == (True, 3)
    redefined = _file_set(replace(OLD, gain="exp2"), NEW, current=_file_set(OLD, NEW), at_ms=2)
    complete = _file_set(NEW, current=redefined, at_ms=3).find("old")
    assert complete is not None
    assert (complete.is_filling, complete.number, complete.superseded_numbers) == (False, 1, (3,))


def test_the_number_of_variants_is_limited_with_those_that_were_dropped() -> None:
    """A variant is stored in a byte."""
    many = {f"v{number}": 1 / 200 for number in range(200)}
    current = _file_set(replace(OLD, control="v0", variants=many))
    others = {"v0": 0.5} | {f"w{number}": 1 / 200 for number in range(100)}
    for archived in (current, _file_set(NEW, current=current, at_ms=2)):
        with pytest.raises(UsageError, match="300 variants with the dropped ones, expected at most 255"):
            _file_set(replace(OLD, control="v0", variants=others), current=archived, at_ms=3)
