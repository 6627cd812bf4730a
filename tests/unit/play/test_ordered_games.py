"""Games that say who moves next, from the arena to the samples: a seat that moves twice, and both at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from actors.arena import GameTask, Player, Rules, answer, play_game
from actors.policy import Completion, Request, Sampling, Score
from actors.pool import EnginePool
from cluster.run.parts import _probe
from cluster.serve.visits import PersonGame
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import decode, encode
from spag_ray.errors import EngineError, InputError
from spag_ray.game import check
from spag_ray.game.protocol import SEATS, Game
from spag_ray.game.rules import EndReason, Outcome, Role
from spag_ray.game.styles import game_renderer
from spag_ray.training_data.game_samples import game_samples
from spag_ray.training_data.imitation import imitated_turns
from tests.support.families import tokenizer_of
from tests.support.ordered_games import Pennies, Stairs

A, D = Role


class Says:
    """Says given lines, one a turn; checks whose turn it is asked for, and keeps what was read."""

    name = "says"
    version = 0
    is_dead = False

    def __init__(self, renderer: Any, lines: Sequence[str]) -> None:
        self._renderer, self._lines = renderer, lines
        self.asked: list[Role] = []

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        assert request.view is not None
        self.asked.append(request.view.role)
        tokens = self._renderer.reply_ids(self._lines[len(request.view.history)])
        return Completion(request.request_id, tokens, (-0.5,) * len(tokens), 0, 0, "stop")

    async def score(self, sequences: Sequence[Any], temperature: float = 1.0, adapter: Any = None) -> list[Score]:
        raise EngineError("it is asked for no probabilities")


def seated(game: Game, lines: Sequence[str], style: str = "chat") -> tuple[Says, Player, Rules]:
    renderer = game_renderer(game, tokenizer_of("smollm2"), style)
    policy = Says(renderer, lines)
    pool = EnginePool("says")
    pool.join("says", policy)
    rules = Rules(game, "own", style)
    return policy, Player(pool, renderer, Sampling(1.0, 16)), rules


def played(loop: Any, game: Game, scenario: str, lines: Sequence[str], style: str = "chat") -> Episode:
    policy, player, rules = seated(game, lines, style)
    task = GameTask(0, scenario, "test")
    episode: Episode = loop.run(play_game(task, dict.fromkeys(("attacker", "defender"), player), rules))
    assert policy.asked == [turn.role for turn in episode.turns]
    return episode


@pytest.mark.parametrize("method", ["rule", "messages", "to_move"])
def test_what_a_game_raises_while_it_is_played_is_told_with_what_it_was_asked(method: str, loop: Any) -> None:
    """A trace alone does not say which reply it was."""

    def raises(self: Stairs, *asked: Any) -> Any:
        history, _ = asked[-2:]
        if len(history) > 1:
            raise KeyError("stop")
        return getattr(Stairs, method)(self, *asked)

    game = type("Broken", (Stairs,), {method: raises})()
    told = rf"^Broken\.{method}: it raises KeyError: 'stop' \(test_ordered_games\.py, line \d+; scenario '0', history "
    with pytest.raises(InputError, match=told + r"\['go', 'stop'\]\); mend the game"):
        played(loop, game, "0", ["go", "stop", "go", "go"])


@pytest.mark.parametrize("game", [Stairs, Pennies])
def test_they_keep_the_promises_of_the_protocol(game: Any) -> None:
    assert check(game, 40) == []


@pytest.mark.parametrize("style", ["chat", "lines"])
def test_a_seat_keeps_the_turn_and_its_prompts_extend_each_other_token_by_token(style: str, loop: Any) -> None:
    episode = played(loop, Stairs(), "1", ["go", "stop", "go", "go", "go"], style)
    assert [turn.role for turn in episode.turns] == [D, D, A, A, A]
    assert (episode.verdict.outcome, episode.verdict.end_reason) == (Outcome.ATTACKER_WINS, "climbed")
    assert decode(encode(episode)) == episode
    first, second, third, fourth, fifth = episode.turns
    for before, after in ((first, second), (third, fourth), (fourth, fifth)):
        own = before.prompt_ids + before.token_ids
        assert after.prompt_ids[: len(own)] == own
    renderer = game_renderer(Stairs(), tokenizer_of("smollm2"), style)
    read = Stairs().messages(0, [turn.text for turn in episode.turns[:4]], "1")
    assert fifth.prompt_ids == renderer.whole_ids(read), "the pieces have the tokens of the whole"


@pytest.mark.parametrize("style", ["chat", "lines"])
def test_of_two_seats_that_choose_at_once_the_second_reads_nothing_of_the_first(style: str, loop: Any) -> None:
    games = [
        played(loop, Pennies(), "pennies", [first, "tails", third, "heads"], style)
        for first in ("heads", "tails")
        for third in ("heads", "tails")
    ]
    assert [turn.role for turn in games[0].turns] == [A, D, D, A]
    assert len({each.turns[1].prompt_ids for each in games}) == 1, "whatever the first one chose"
    last = {each.turns[3].prompt_ids for each in games}
    assert len(last) == 2, "seat 0 reads its own choice of the first round, and nothing of seat 1's of the second"
    outcomes = [each.verdict.outcome for each in games]
    assert outcomes == [Outcome.TIED, Outcome.DEFENDER_WINS, Outcome.ATTACKER_WINS, Outcome.TIED]


def test_rewards_are_shared_over_the_turns_that_a_seat_really_had(loop: Any) -> None:
    episode = played(loop, Stairs(), "1", ["go", "stop", "go", "go", "go"])
    both = ObjectiveConfig(learn_from="both", baseline="none", decay=0.5, loser_turns="all")
    [game] = game_samples([episode], both)
    assert [(turn.role, round(turn.advantage, 4)) for turn in game.turns] == [
        (D, round(-1 / 3, 4)),
        (D, round(-2 / 3, 4)),
        (A, round(1 / 7, 4)),
        (A, round(2 / 7, 4)),
        (A, round(4 / 7, 4)),
    ]
    [game] = game_samples([episode], both.model_copy(update={"loser_turns": "deciding"}))
    assert [turn.role for turn in game.turns] == [A, A, A], "the winner's turn decided, none of the loser's"
    assert imitated_turns(episode, "both", 1.0) == {0: 0.5, 1: 0.5, 2: 1 / 3, 3: 1 / 3, 4: 1 / 3}


def test_a_turn_that_breaks_the_rules_costs_its_own_seat(loop: Any) -> None:
    episode = played(loop, Stairs(), "0", ["go", "up"])
    assert episode.verdict.outcome is Outcome.ATTACKER_BREACH
    [game] = game_samples([episode], ObjectiveConfig())
    assert [(turn.role, turn.advantage) for turn in game.turns] == [(A, -1.0)]


class Alone(Stairs):
    """Only the opening seat ever moves, and it climbs nowhere."""

    def to_move(self, history: Any, scenario: str) -> int:
        return int(scenario)

    def rule(self, history: Any, scenario: str) -> Any:
        return None


def test_a_game_in_which_one_seat_alone_moves_ends_with_its_turns(loop: Any) -> None:
    episode = played(loop, Alone(), "1", ["go"] * 9)
    assert [turn.role for turn in episode.turns] == [D] * 4
    assert (episode.verdict.outcome, episode.verdict.end_reason) == (Outcome.TIED, EndReason.UNDECIDED)
    with pytest.raises(InputError, match="5 turns of the defender, at most 4 allowed"):
        replace(episode, turns=(*episode.turns, episode.turns[0]))


@pytest.mark.parametrize("game", ["taboo", "kuhn"])
def test_the_turns_of_games_that_alternate_do_so_whoever_logged_them(game: str, loop: Any) -> None:
    episode = played(loop, Alone(), "0", ["go"] * 9)
    with pytest.raises(InputError, match="turn 1 is by the attacker, but turns alternate"):
        replace(episode, game=game)


def test_a_user_is_answered_until_it_is_the_users_turn(loop: Any) -> None:
    _, player, rules = seated(Stairs(), ["go", "stop", "stop", "go"])
    task = GameTask(0, "1", "visit")

    def answered(*texts: str) -> Any:
        return loop.run(answer(task, texts, D, player, rules))

    assert answered() == (["go"], None, D), "the model opens and keeps the turn"
    assert answered("go") == (["go", "stop"], None, A)
    assert answered("go", "stop") == (["go", "stop"], None, A), "it is the user's turn"
    assert answered("go", "stop", "stop") == (["go", "stop", "stop", "go"], None, D)
    turns, verdict, next_role = answered("go", "up")
    assert (turns, verdict.outcome, next_role) == (["go", "up"], Outcome.DEFENDER_BREACH, None)


async def test_a_person_has_several_turns_in_a_row() -> None:
    _, player, rules = seated(Stairs(), [*["stop"] * 2, "go"])
    game = PersonGame(GameTask(0, "0", "visit"), A, rules)
    for said in ("go", "stop"):
        assert game.to_move is A
        game.say(said, player)
    assert game.to_move is D
    await game.reply(player)
    assert game.to_move is D, "the model said go"
    with pytest.raises(InputError, match="it is not your turn"):
        game.say("go", player)
    assert [turn.role for turn in game.turns] == [A, A, D]


@pytest.mark.parametrize("scenario", ["0", "1"])
def test_a_probe_of_new_weights_reads_what_the_seat_that_opens_reads(scenario: str) -> None:
    renderer = game_renderer(Stairs(), tokenizer_of("chatml"), "chat")
    assert _probe(renderer, scenario).prompt_ids == renderer.prompt((), SEATS[int(scenario)], scenario)
