"""Target words: word lists on disk, and the seeded, resumable stream that gives them out to games.

>>> stream = WordStream([WordsOfGame("taboo", 1.0, ("river", "cat"))], seed=0)
>>> lease = stream.lease()      # a game is to be played with lease.word
>>> stream.give_back(lease)     # its arena died: the word is given out again first
>>> stream.lease() == lease
True
>>> stream.done(lease)          # the game was played
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spag_ray.errors import InputError
from spag_ray.host.whole_files import given_text

WordOrder = Literal["shuffled", "progress"]
# A word's weight with `progress` is LEAST_WEIGHT plus its spread, which is UNKNOWN_SPREAD until games of it have ended.
LEAST_WEIGHT, UNKNOWN_SPREAD = 0.1, 1.0

# English function words: too common to be a target, and never counted as a form of another word.
STOP_WORDS = frozenset(
    # With one line per word, the list would be pages long.
    """
    a about above across after again against ago all almost along already also although always am among
    an and another any anybody anyone anything anywhere are around as at away be because been before
    behind being below beneath beside between beyond both but by can cannot could did do does doing done
    down during each either else enough even ever every everybody everyone everything everywhere few for
    from further had has have having he hence her here hers herself him himself his how however i if in
    indeed instead into is it its itself just least less let many may maybe me might mine more most much
    must my myself near neither never nevertheless no nobody none nor not nothing now nowhere of off
    often on once one only onto or other others otherwise ought our ours ourselves out over own per
    perhaps quite rather really same shall she should since so some somebody somehow someone something
    sometimes somewhere still such than that the their theirs them themselves then there therefore these
    they this those though through throughout thus till to together too toward towards under unless
    until up upon us very was we were what whatever when whenever where wherever whether which while who
    whoever whole whom whose why will with within without would yes yet you your yours yourself
    yourselves ain aren couldn didn doesn don hadn hasn haven isn mustn needn shan shouldn wasn weren
    won wouldn gonna gotta wanna
    """.split()  # noqa: SIM905
) - {"won"}


def read_words(path: str | Path) -> list[str]:
    """The words of a file with one word per line; blank lines at the end are ignored. Raises InputError."""
    words = read_lines(path, "word", str.casefold)
    for number, word in enumerate(words, start=1):
        if len(word.split()) > 1:
            raise InputError(f"{path}, line {number}: {word!r} is more than one word; write one word a line")
    return words


def read_lines(path: str | Path, what: str, folded: Callable[[str], str] = str) -> list[str]:
    """The lines of a file without white space around them. None is blank, and no two are the same when `folded`."""
    remedy = f"one {what} a line"
    lines = given_text(path, f"the {what} list", f"give a UTF-8 file, {remedy}").rstrip().split("\n")
    texts = [line.strip() for line in lines]
    if texts == [""]:
        raise InputError(f"{path}: the {what} list is empty; write {remedy}")
    first_line: dict[str, int] = {}
    for number, text in enumerate(texts, start=1):
        if not text:
            raise InputError(f"{path}, line {number}: blank; remove the line")
        earlier = first_line.setdefault(folded(text), number)
        if earlier != number:
            raise InputError(f"{path}: {text!r} is on lines {earlier} and {number}; remove one of them")
    return texts


def top_words(count: int) -> list[str]:
    """The `count` most frequent words of wordfreq: 3 or more letters a-z, lower-case, no stop word."""
    if count < 1:
        raise InputError(f"{count} words were requested; request at least one")
    import wordfreq

    # Most candidates are kept, so a list somewhat longer than needed is read first, and all of it if that is too short.
    for num_candidates in (2 * count + 1000, 10**7):
        candidates = wordfreq.top_n_list("en", num_candidates, ascii_only=True)
        words = [word for word in dict.fromkeys(candidates) if _is_target(word)]
        if len(words) >= count:
            return words[:count]
    raise InputError(f"{count} words were requested, but the frequency list has {len(words)}; request fewer")


class Scenario(NamedTuple):
    """What a game begins with: a target word, or another game's scenario. `game`: its name."""

    text: str
    game: str


@dataclass(frozen=True)
class Lease:
    """A word given out for one game; `index` counts the words given out and is never used twice. `game`: its name."""

    word: str
    index: int
    game: str

    @property
    def scenario(self) -> Scenario:
        return Scenario(self.word, self.game)


class WordsOfGame(NamedTuple):
    """The words, or scenarios, of a game. `share`: of the leases."""

    game: str
    share: float
    words: tuple[str, ...]


class SharePlan:
    """Which game each place of a sequence has, a function of the shares alone: the next place goes to the game that
    lacks most. Of any first n places each game has its share of n, give or take less than the number of games.

    >>> plan = SharePlan((0.5, 0.25, 0.25))
    >>> [plan.at(place) for place in range(6)]
    [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1)]
    """

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = tuple(shares)
        self._counts = [0] * len(self._shares)
        self._games = bytearray()  # the game of every place so far

    def at(self, place: int) -> tuple[int, int]:
        """(the game of a place, how many places before it that game has)."""
        if len(self._shares) == 1:  # a run of one game may have any number of places
            return 0, place
        while len(self._games) <= place:
            total = len(self._games) + 1
            lacking = [share * total - count for share, count in zip(self._shares, self._counts, strict=True)]
            game = lacking.index(max(lacking))
            self._counts[game] += 1
            self._games.append(game)
        game = self._games[place]
        return game, self._games.count(game, 0, place)


class WordStream:
    """Words in seeded, shuffled passes, each word equally often; every lease ends in `done` or `give_back`.

    The word of the lease with index i depends only on the words, the seed and i, not on other leases.
    With `attacker_seats` = n each word comes n times in a row, once for every player that attacks with it. With
    `games_per_word` = n it comes n times in a row, in a group that is compared: leases 0 to n - 1, n to 2n - 1, and so
    on; n is then a multiple of `attacker_seats`.
    With the order `progress` the passes after the first draw words with replacement, by weights that `observe` changes.
    The words of a pass are fixed when its first one is given out, and kept in the state.
    Each game gets its share of the leases (SharePlan), and its own words in the order that a stream of this game alone
    would have.
    """

    def __init__(
        self,
        games: Sequence[WordsOfGame],
        seed: int,
        attacker_seats: int = 1,
        games_per_word: int = 1,
        order: WordOrder = "shuffled",
    ) -> None:
        self.games = tuple(games)
        if not all(each.words for each in self.games) or not self.games:
            raise InputError("the word stream has no words; give it at least one")
        for each in self.games:
            if len(set(each.words)) != len(each.words):
                raise InputError("a word was given to the word stream twice; give every word once")
        if games_per_word > 1 and games_per_word % attacker_seats:
            raise InputError(
                f"games_per_word is {games_per_word}; it must be 1, or a multiple of {attacker_seats}, because so many "
                "players attack with each word"
            )
        self._seed = seed
        self._attacker_seats = attacker_seats
        self.games_per_word = games_per_word
        self._in_a_row = max(attacker_seats, games_per_word)
        self._next_index = 0
        self._out: dict[int, str] = {}
        self._returned: list[int] = []
        self._plan = SharePlan([each.share for each in self.games])
        self._order = order
        self._spreads: list[dict[str, float]] = [{} for _ in self.games]
        self._passes: list[dict[int, tuple[str, ...]]] = [{} for _ in self.games]

    def lease(self) -> Lease:
        """The next word; one that was given back comes first, the oldest of them."""
        if self._returned:
            index = min(self._returned)
            self._returned.remove(index)
        else:
            index = self._next_index
            self._next_index += 1
        return self._give(index)

    def done(self, lease: Lease) -> None:
        """The game was played. Raises InputError for a lease that is not out."""
        if self._out.get(lease.index) != lease.word:
            raise InputError(
                f"the word {lease.word!r} (lease {lease.index}) is not out: returned before or never given"
            )
        del self._out[lease.index]

    def give_back(self, lease: Lease) -> None:
        """The game was lost; its word is given out again. Raises InputError for a lease that is not out."""
        self.done(lease)
        self._returned.append(lease.index)

    def observe(self, game: str, spreads: Mapping[str, float]) -> None:
        """{word of a game: how much what its last games paid varied}; with the order `progress` later passes give words
        out by it."""
        (place,) = (place for place, each in enumerate(self.games) if each.game == game)
        self._spreads[place].update(spreads)

    def state(self) -> dict[str, Any]:
        """What `from_state` needs, as plain JSON. Leases that are out count as given back."""
        return {
            "games": [[each.game, each.share, list(each.words)] for each in self.games],
            "seed": self._seed,
            "attacker_seats": self._attacker_seats,
            "games_per_word": self.games_per_word,
            "next_index": self._next_index,
            "unfinished": sorted([*self._returned, *self._out]),
            **(self._progress() if self._order == "progress" else {}),
        }

    def _progress(self) -> dict[str, Any]:
        passes = [{str(number): list(words) for number, words in each.items()} for each in self._passes]
        return {"order": self._order, "spreads": [dict(each) for each in self._spreads], "passes": passes}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> WordStream:
        games = [WordsOfGame(game, share, tuple(words)) for game, share, words in state["games"]]
        groups, order = state.get("games_per_word", 1), state.get("order", "shuffled")
        stream = cls(games, state["seed"], state["attacker_seats"], groups, order)
        stream._next_index = state["next_index"]
        stream._returned = list(state["unfinished"])
        if order == "progress":
            stream._spreads = [dict(each) for each in state["spreads"]]
            stream._passes = [{int(n): tuple(words) for n, words in each.items()} for each in state["passes"]]
        return stream

    def resumed(self, next_index: int, unfinished: Sequence[int]) -> WordStream:
        """This stream in the state where leases below `next_index` were given out and all but `unfinished` returned."""
        return WordStream.from_state(self.state() | {"next_index": next_index, "unfinished": list(unfinished)})

    def go_back_to(self, state: Mapping[str, Any] | None) -> None:
        """Restore the stream to `state`; None: to its beginning."""
        beginning = WordStream(self.games, self._seed, self._attacker_seats, self.games_per_word, self._order)
        vars(self).update(vars(beginning if state is None else WordStream.from_state(state)))

    def played(self, index: int) -> None:
        """Record a game whose lease is not known to be out. Its word is not given out again; words of lower indices
        that were not given out yet count as given back."""
        if index in self._returned:
            self._returned.remove(index)
        elif index >= self._next_index:
            self._returned += range(self._next_index, index)
            self._next_index = index + 1

    def lease_again(self, index: int) -> Lease:
        """Mark a lease as out that was out when the resumed stream ended."""
        self.played(index)
        return self._give(index)

    def _give(self, index: int) -> Lease:
        game, before = self._plan.at(index // self._in_a_row)
        words = self.games[game].words
        number, place = divmod(before, len(words))
        passes = self._passes[game]
        if number not in passes:
            drawn = self._drawn(game, number)
            kept = number - 1 if self._order == "progress" else number  # a game of the pass before may be given again
            self._passes[game] = passes = {n: own for n, own in passes.items() if n >= kept} | {number: drawn}
        lease = Lease(passes[number][place], index, self.games[game].game)
        self._out[index] = lease.word
        return lease

    def _drawn(self, game: int, number: int) -> tuple[str, ...]:
        """The words of a pass of a game."""
        words, spreads = list(self.games[game].words), self._spreads[game]
        # A string seed is hashed with SHA-512, so passes of nearby seeds are unrelated.
        chance = random.Random(f"{self._seed}/{number}")
        if self._order == "progress" and number and spreads:
            weights = [LEAST_WEIGHT + spreads.get(word, UNKNOWN_SPREAD) for word in words]
            return tuple(chance.choices(words, weights, k=len(words)))
        chance.shuffle(words)
        return tuple(words)


def _is_target(word: str) -> bool:
    return len(word) >= 3 and word.isascii() and word.isalpha() and word.islower() and word not in STOP_WORDS
