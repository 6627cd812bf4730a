"""Which version of a stream a published number is, over several resumes."""

from cluster.buffer.lineage import Lineage


def test_the_weights_of_a_checkpoint_are_the_same_version_under_every_number() -> None:
    lineage = Lineage.from_cursor({"num_learned": 0, "versions": {"policy": 1}})
    for version in (1, 2, 3):
        lineage.published(version, {"policy": version + 1})
    lineage.published(2, {"policy": 5})  # resumed at version 2, which was number 3
    lineage.published(3, {"policy": 6})
    lineage.published(2, {"policy": 7})  # resumed there again: numbers 6 and 4 are two abandoned versions
    lineage.published(3, {"policy": 8})
    assert [lineage.version_of("policy", number) for number in (1, 2, 3, 5, 7, 8)] == [0, 1, 2, 2, 2, 3]
    assert [lineage.version_of("policy", number) for number in (4, 6)] == [1, 1], "two updates from version 3, not none"


def test_each_policy_has_numbers_of_its_own() -> None:
    lineage = Lineage.from_cursor({"num_learned": 4, "versions": {"attacker": 9, "defender": 7}})
    lineage.published(5, {"attacker": 10, "defender": 8})
    assert (lineage.version_of("attacker", 9), lineage.version_of("defender", 8)) == (4, 5)
    assert len(lineage.starts) == 1, "both rose by one with the version: nothing was resumed"


def test_a_cursor_without_numbers_is_read_as_one_attempt() -> None:
    """Of a run before there were any: games before the checkpoint are as old as their numbers say."""
    lineage = Lineage.from_cursor({"num_learned": 6, "versions": {"policy": 8}})
    assert [lineage.version_of("policy", number) for number in (5, 8, 9)] == [3, 6, 7]


def test_what_was_written_is_read_back() -> None:
    lineage = Lineage.from_cursor({"num_learned": 0, "versions": {"policy": 1}})
    lineage.published(1, {"policy": 2})
    cursor = {"num_learned": 1, "versions": {"policy": 3}, "numbers": [list(each) for each in lineage.starts]}
    assert Lineage.from_cursor(cursor).starts == [(0, {"policy": 1}), (1, {"policy": 3})]
