"""A game between a person and a model, kept token by token, so that it can be logged like any other.

game = PersonGame(task, Role.ATTACKER, rules)
game.say("It has a bed and runs.", player)
await game.reply(player)                       # the model's turn; game.verdict is set once the game has ended
hindsight = await game.look_back(player, 1024)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from actors.arena import GameTask, Player, Rules, Seats, ended_game, play_turn, role_to_move, verdict_after
from spag_ray.episodes.episode import Episode
from spag_ray.errors import InputError, ModelError
from spag_ray.game.game_form import out_of_room
from spag_ray.game.protocol import Guessing
from spag_ray.game.rules import Role, Verdict
from spag_ray.game.turn import Turn

PERSON = "person"
MAX_CHARACTERS = 500  # of a person's turn


@dataclass(frozen=True)
class Hindsight:
    """How the model saw a game that has ended, at temperature 1. `logprobs`: for each turn, those of its tokens [L], of
    the person's turns too; none of a turn that its context does not hold. `known` {turn: probability of the target
    word, had its player claimed a word there}."""

    logprobs: tuple[tuple[float, ...], ...]
    known: dict[int, float]


class PersonGame:
    def __init__(self, task: GameTask, person: Role, rules: Rules) -> None:
        self.task = task
        self.person = person
        self.rules = rules
        self.turns: list[Turn] = []
        self.verdict: Verdict | None = None

    @property
    def to_move(self) -> Role | None:
        """The seat whose turn it is; None after the end."""
        return None if self.verdict is not None else role_to_move(self.turns, self.task, self.rules)

    def say(self, text: str, player: Player) -> None:
        """The person's turn; `player` is the model's. Raises InputError for a text that is no turn."""
        if self.to_move is not self.person:
            raise InputError("it is not your turn")
        text = " ".join(text.split())
        if not text:
            raise InputError("say something: an empty turn breaks the rules")
        if len(text) > MAX_CHARACTERS:
            raise InputError(f"a turn has at most {MAX_CHARACTERS} characters; this one has {len(text)}")
        self._add(player.renderer.told_turn(self.turns, self.person, text, self.task.scenario, PERSON))

    async def reply(self, player: Player) -> None:
        """The model's turn. Raises EngineError when it does not answer; it can be asked again."""
        with Seats() as seats:
            turn = await play_turn(
                self.task, self.turns, self.person.other, player=player, rules=self.rules, seats=seats
            )
        if turn is None:
            self.verdict = out_of_room(self.person.other, len(self.turns))
        else:
            self._add(turn)

    def _add(self, turn: Turn) -> None:
        self.turns.append(turn)
        self.verdict = verdict_after(self.turns, self.task, self.rules)

    async def look_back(self, player: Player, max_model_len: int) -> Hindsight:
        """The model's probabilities of what was said, and of the word at each turn of the defender, as far as they fit
        into its context. Raises EngineError."""
        asked: list[tuple[Sequence[int], Sequence[int]]] = [(turn.prompt_ids, turn.token_ids) for turn in self.turns]
        game, guesser, claim = self.rules.game, self.rules.guesser, None
        places = [place for place, turn in enumerate(self.turns) if turn.role is guesser]
        try:
            if isinstance(game, Guessing) and places:
                claim = player.renderer.claim(game.fact(self.task.scenario))
        except ModelError:  # the tokenizer joins the word to the text beside it
            pass
        if claim is not None:
            asked += [(self.turns[place].prompt_ids + claim.opening_ids, claim.word_ids) for place in places]
        fits = [place for place, sequence in enumerate(asked) if sum(map(len, sequence)) < max_model_len]
        with Seats() as seats:
            await seats.take(player.pool)
            found = dict(zip(fits, await seats.score(player, [asked[place] for place in fits]), strict=True))
        logprobs = [found[place].logprobs if place in found else () for place in range(len(self.turns))]
        known = {
            turn: math.exp(min(sum(found[place].logprobs), 0.0))
            for place, turn in enumerate(places if claim is not None else (), len(self.turns))
            if place in found
        }
        return Hindsight(tuple(logprobs), known)

    def episode(self, number: int, temperature: float, known: dict[int, float]) -> Episode:
        """The game as it is logged. The person's turns have no probabilities, neither of their tokens nor of the
        word: the model did not play them."""
        if self.verdict is None:
            raise InputError("a game is kept after its end")
        turns = list(self.turns)
        for place, share in known.items():
            if turns[place].role is not self.person and share > 0:
                turns[place] = replace(turns[place], word_logprob=math.log(share))
        return ended_game(replace(self.task, number=number), self.rules, turns, self.verdict, temperature)
