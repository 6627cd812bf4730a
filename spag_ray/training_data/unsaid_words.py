"""Words that a turn must not say: the target word in an attacker's turn, words said before in a defender's claim.

    of_attackers = unsaid_words(episodes, renderer.spoken, max_tokens=2048, num_private=renderer.num_private)
    of_defenders = heard_words(episodes, renderer.claim, max_tokens=2048)
    games = with_unsaid_words(games, of_attackers, of_defenders)

A place is a prompt and the tokens of a word whose probability is lowered there.

- Attacker: a place at each public token of each of its turns, also of the turn that broke the rules. The model reads
  the prompt and the turn up to that token. A thought has no places, because the other seat never reads it. A place is
  left out if the turn says another word there that begins with the first of its tokens, or with all of them
  (" rain" in " raincoat"; not in " rains", a form of it).
- Defender: a place after a claim's opening in each turn. A word that was said before is not the target word, or the
  game would have ended. A small model often claims it anyway, because it is in the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from spag_ray.episodes.episode import Episode
from spag_ray.errors import ModelError
from spag_ray.game.renderer import Claim, Spoken
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.game.words import STOP_WORDS
from spag_ray.games.taboo.referee.folding import fold
from spag_ray.games.taboo.referee.word_forms import word_forms
from spag_ray.training_data.listened_turns import guessers_turns
from spag_ray.training_data.samples import GameSample, Sample

_WORD = re.compile(r"[a-z]{2,}")

Places = Mapping[str, tuple[tuple[Sample, ...], ...]]


def unsaid_words(
    episodes: Sequence[Episode],
    spoken: Callable[[str], Spoken],
    max_tokens: int,
    learning: Container[str] | None = None,
    num_private: Callable[[Turn], int] = lambda turn: 0,
    text_of: Callable[[Sequence[int]], str] | None = None,
) -> Places:
    """{episode_id: for each of the attacker's turns, its places}. Left out: places of more than `max_tokens` tokens,
    turns after the verdict, and turns of policies that are not in `learning` (None: all are in). `num_private`: tokens
    of a turn that come before its public text. `text_of`: of tokens;
    without it, no word is told from a longer one."""
    found = {}
    for episode in episodes:
        word = spoken(episode.scenario)
        # To the published referee "raincoat" says "rain".
        goes_on = partial(_says_another, episode.scenario, None if episode.rules == "published" else text_of)
        turns = [
            tuple(place for place in _places(turn, word, num_private(turn), goes_on) if place.num_tokens <= max_tokens)
            for turn in episode.turns[: episode.verdict.length]
            if turn.role is Role.ATTACKER and turn.prompt_ids and (learning is None or turn.policy in learning)
        ]
        if kept := tuple(filter(None, turns)):
            found[episode.episode_id] = kept
    return found


def _says_another(word: str, text_of: Callable[[Sequence[int]], str] | None, rest: Sequence[int]) -> bool:
    """Whether the rest of a turn, which begins with the tokens of the word, begins with another word."""
    return text_of is not None and not word_forms(word).pattern.match(fold(text_of(rest).lstrip()).text)


def _places(turn: Turn, word: Spoken, first: int, goes_on: Callable[[Sequence[int]], bool]) -> Iterator[Sample]:
    """`first`: the place of the first public token. After a thought a word may begin with or without a space."""
    at_first = dict.fromkeys(word.start + word.later) if first else word.start
    for place in range(first, len(turn.token_ids)):
        for ids in word.later if place > first else at_first:
            rest = turn.token_ids[place:]
            is_said = rest[: len(ids)] == ids and not goes_on(rest)
            if is_said or rest[:1] != ids[:1]:
                yield Sample(turn.prompt_ids + turn.token_ids[:place], ids, 1.0, role=Role.ATTACKER)


def heard_words(
    episodes: Sequence[Episode], claim: Callable[[str], Claim], max_tokens: int, learning: Container[str] | None = None
) -> Places:
    """{episode_id: for each of the defender's turns, a place for each word that was said before}.

    The turns are those of `guessers_turns`. Words have only the letters a to z; stop words are left out, and so
    are words that the tokenizer joins to the claim, and words that the target word begins with. If the tokenizer joins
    the target word to the claim, the whole game is left out.
    """
    found = {}
    for episode in episodes:
        target = _claim(claim, episode.scenario)
        if target is None:
            continue
        turns = []
        for index in guessers_turns(episode):
            turn = episode.turns[index]
            if not turn.prompt_ids or (learning is not None and turn.policy not in learning):
                continue
            said = " ".join(earlier.text for earlier in episode.turns[:index]).lower()
            claims = filter(None, (_claim(claim, word) for word in sorted({*_WORD.findall(said)} - STOP_WORDS)))
            places = (
                Sample(turn.prompt_ids + each.opening_ids, each.named_ids, 1.0, role=Role.DEFENDER)
                for each in claims
                if target.word_ids[: len(each.named_ids)] != each.named_ids
            )
            turns.append(tuple(place for place in places if place.num_tokens <= max_tokens))
        if kept := tuple(filter(None, turns)):
            found[episode.episode_id] = kept
    return found


def _claim(claim: Callable[[str], Claim], word: str) -> Claim | None:
    try:
        return claim(word)
    except ModelError:
        return None


def with_unsaid_words(games: Sequence[GameSample], *parts: Places) -> list[GameSample]:
    """The games with all their places. Places of games that are not among `games` are dropped."""

    def of(game: GameSample) -> tuple[tuple[Sample, ...], ...]:
        return tuple(turn for part in parts for turn in part.get(game.episode_id, ()))

    return [replace(game, unsaid=of(game)) for game in games]
