"""Which version of a stream a published number is, so how old a game is: no number is used twice, so a run that resumes
publishes the same weights again, under the next number (actors/league.py counts the versions of a whole run alike).

    version   0  1  2  3  4      there is a checkpoint of version 2, and the run ends at version 4
    number    1  2  3  4  5
    version         2  3  4      resumed: games of numbers 3 and 6 are of the same weights
    number          6  7  8      numbers 4 and 5 are of weights that were abandoned
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Lineage:
    """`starts`: [(version, {policy: its number})], one for each attempt: from there on both rise together."""

    starts: list[tuple[int, Mapping[str, int]]]

    @classmethod
    def from_cursor(cls, cursor: Mapping[str, Any]) -> Lineage:
        """Of a stream's cursor, with the numbers under which its version is published now."""
        version, numbers = cursor["num_learned"], cursor["versions"]
        lineage = cls([(first, before) for first, before in cursor.get("numbers") or [(version, numbers)]])
        lineage.published(version, numbers)
        return lineage

    def published(self, version: int, numbers: Mapping[str, int]) -> None:
        """These are the numbers of a version."""
        first, before = self.starts[-1]
        if any(number - before[policy] != version - first for policy, number in numbers.items()):
            self.starts.append((version, dict(numbers)))

    def version_of(self, policy: str, number: int) -> int:
        """An abandoned version counts as one that is as far behind the checkpoint as it was ahead of it: the difference
        to the learner's is then the number of updates between the weights of both.

        >>> lineage = Lineage([(0, {"policy": 1}), (2, {"policy": 6})])
        >>> [lineage.version_of("policy", number) for number in (1, 2, 3, 4, 5, 6, 7)]
        [0, 1, 2, 1, 0, 2, 3]
        """
        own = max((place for place, (_, begin) in enumerate(self.starts) if begin[policy] <= number), default=0)
        first, begin = self.starts[own]
        version = first + number - begin[policy]
        common = min([version, *(later for later, _ in self.starts[own + 1 :])])
        return common - (version - common)
