"""Which turns teach the defender the word, what their loss is, and which batches they ride along with."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from learners.forward import token_logprobs
from learners.packing import pack
from spag_ray.config.loading import parse_config
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.episodes.episode import Episode
from spag_ray.errors import ModelError
from spag_ray.game.renderer import Claim
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.could_have_known import Knowledge
from spag_ray.training_data.game_samples import game_samples
from spag_ray.training_data.listened_turns import count_leading, guessers_turns, listened_turns, spread, with_listening
from spag_ray.training_data.samples import GameSample, Sample, turns_of
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import Method, StageSpec
from tests.support.episodes import game
from tests.support.losses import Trained
from tests.support.tree_model import check_same_in_a_tree, make_tree_model

torch.set_num_threads(1)


def claim(word: str) -> Claim:
    assert word == "cat"
    return Claim((7, 8), (9, 10), 1)


def told_apart(episode: Episode) -> Episode:
    """Every turn with a prompt of its own."""
    turns = (replace(turn, prompt_ids=(1, 20 + index)) for index, turn in enumerate(episode.turns))
    return replace(episode, turns=tuple(turns))


def heard(*episodes: Episode, **options: Any) -> dict[str, list[int]]:
    """{episode: indices of its turns that are listened to}"""
    asked: dict[str, Any] = {"turns": "all", "max_tokens": 100, **options}
    found = listened_turns([told_apart(each) for each in episodes], claim, **asked)
    assert all([*turn.prompt_ids[2:], *turn.target_ids] == [7, 8, 9, 10] for each in found.values() for turn in each)
    return {name: [int(turn.prompt_ids[1]) - 20 for turn in each] for name, each in found.items()}


def test_a_defender_listens_after_its_own_prompt_and_only_the_word_is_learned() -> None:
    (positions,) = listened_turns([game(0, Outcome.TIED, 2)], claim, "all", 100).values()
    assert positions == (Sample((1, 2, 7, 8), (9, 10), 1.0, role=Role.DEFENDER),)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_game_is_listened_to_however_it_ended(outcome: Outcome) -> None:
    assert heard(game(0, outcome)) == {"s/0": [1, 3]}
    assert heard(game(0, outcome), turns="last") == {"s/0": [3]}


def test_nothing_is_heard_once_the_attacker_has_broken_the_rules() -> None:
    breach = Outcome.ATTACKER_BREACH
    assert heard(game(0, breach, 5, decided_by=4)) == {"s/0": [1, 3]}
    assert heard(game(0, breach, 5, decided_by=2), game(1, breach, 1, decided_by=0)) == {"s/0": [1]}
    assert heard(game(0, Outcome.DEFENDER_BREACH, 4, decided_by=3)) == {"s/0": [1, 3]}


def test_turns_beyond_the_verdict_of_others_or_of_no_room_are_left_out() -> None:
    episode = game(0, Outcome.ATTACKER_WINS)
    ended = replace(episode, verdict=replace(episode.verdict, length=2, turn=1))
    assert heard(ended) == {"s/0": [1]}
    assert heard(episode, learning={"another"}) == {}
    unread = told_apart(episode).turns
    unread = (unread[0], replace(unread[1], prompt_ids=()), *unread[2:])
    (positions,) = listened_turns([replace(episode, turns=unread)], claim, "all", 100).values()
    assert [list(each.prompt_ids) for each in positions] == [[1, 23, 7, 8]], "one has no prompt"
    assert heard(episode, learning={"p"}) == {"s/0": [1, 3]}
    assert heard(episode, max_tokens=6) == {"s/0": [1, 3]}
    assert heard(episode, max_tokens=5) == {}


def test_a_word_that_the_tokenizer_joins_to_the_claim_is_not_passed_over() -> None:
    def refused(word: str) -> Claim:
        raise ModelError(f"joins {word}")

    with pytest.raises(ModelError, match="joins cat"):
        listened_turns([game(0, Outcome.TIED)], refused, "all", 100)


def samples() -> list[GameSample]:
    """Won by the attacker and by the defender, each learned; a tie and a breach, each only listened to."""
    played = [
        told_apart(game(0, Outcome.ATTACKER_WINS)),
        told_apart(game(1, Outcome.DEFENDER_WINS)),
        told_apart(game(2, Outcome.TIED, 6)),
        told_apart(game(3, Outcome.ATTACKER_BREACH, 3, decided_by=2)),
    ]
    return with_listening(game_samples(played, ObjectiveConfig()), listened_turns(played, claim, "all", 100))


def test_games_without_a_winner_are_listened_to_alone() -> None:
    games = samples()
    assert [(len(each.turns), len(each.listening)) for each in games] == [(2, 2), (2, 2), (0, 3), (0, 1)]
    assert [each.role for each in games[2:]] == [None, None]
    assert with_listening(game_samples([game(0, Outcome.TIED)], ObjectiveConfig()), {}) == []


def test_of_two_policies_the_defender_alone_listens() -> None:
    attacker, defender = (turns_of(samples(), role) for role in Role)
    assert [(len(each.turns), len(each.listening)) for each in attacker] == [(2, 0)]
    assert [(len(each.turns), len(each.listening)) for each in defender] == [(0, 2), (2, 2), (0, 3), (0, 1)]


def test_games_that_are_only_listened_to_ride_along_evenly_and_make_no_more_steps() -> None:
    word = Sample((1,), (2,), 1.0)
    won = [GameSample(f"w{number}", Role.ATTACKER, 1.0, (word,)) for number in range(5)]
    tied = [GameSample(f"t{number}", None, 1.0, (), (word,)) for number in range(7)]
    batches = spread([*won, *tied], 2, 3)
    assert [[each.episode_id[0] for each in batch] for batch in batches] == [[*"wwtt"], [*"wwtt"], [*"wttt"]]
    assert sorted(g.episode_id for batch in batches for g in batch) == sorted(g.episode_id for g in [*won, *tied])
    assert count_leading([*won, *tied]) == 5
    assert count_leading(tied) == 7
    assert spread(won, 2, 3) == [won[:2], won[2:4], won[4:]]


def trained(batch: Batch, thetas: dict[int, list[float]], method: Method, name: str, coeff: float) -> Trained:
    """A batch whose samples have these log-probabilities, by the length of their prompts."""
    objective, spec = ObjectiveConfig.model_validate({"name": name}), StageSpec(method, 1, 0.0, 0.0, coeff)
    logprobs = [torch.tensor(thetas[len(sample.prompt_ids)], dtype=torch.float64) for sample in batch.samples]
    return Trained.of(batch, objective, spec, logprobs, at_start=True)


@pytest.mark.parametrize("name", ["spag", "published"])
@pytest.mark.parametrize("method", ["imitation", "self_play"])
def test_the_figure_computed_by_hand_is_added_to_either_objective(name: str, method: Method) -> None:
    """Log-probabilities (-1, -3) of every word token at prompts of 4, so 2 nats a token at each position."""
    batch = Batch(tuple(samples()))
    thetas = {2: [-0.5, -0.25], 4: [-1.0, -3.0]}
    plain = trained(Batch(tuple(each for each in samples() if each.turns)), thetas, method, name, 0.0).loss.item()
    found = trained(batch, thetas, method, name, 0.5)
    assert found.loss.item() == pytest.approx(plain + 0.5 * 2.0, abs=1e-12), "N counts the two decided games, as before"
    assert found.sums["listening"] == pytest.approx(1.0)
    assert (found.sums["listened_tokens"], found.sums["listened_nats"]) == (16, 32)


def test_means_are_over_tokens_then_turns_then_games() -> None:
    """Game A has one position of 2 nats; game B two, of 4 and of (1 + 5 + 6) / 3 = 4: (2 + 4) / 2 = 3, not 10 / 3."""
    first = GameSample("a", None, 1.0, (), (Sample((1,), (9,), 1.0, role=Role.DEFENDER),))
    positions = [Sample((1, 2), (9,), 1.0, role=Role.DEFENDER), Sample((1, 2, 3), (9, 9, 9), 1.0, role=Role.DEFENDER)]
    second = GameSample("b", None, 3.0, (), tuple(positions))
    thetas = {1: [-2.0], 2: [-4.0], 3: [-1.0, -5.0, -6.0]}
    defender = turns_of([first, second], Role.DEFENDER)
    last = replace(second, listening=second.listening[-1:])
    found, shorter, of_defender = (
        trained(Batch(tuple(games)), thetas, "self_play", "spag", 0.5).loss.item()
        for games in ((first, second), (first, last), defender)
    )
    assert (found, shorter) == pytest.approx((0.5 * 3.0, 0.5 * 3.0), abs=1e-12)
    assert of_defender == found
    assert turns_of([first, second], Role.ATTACKER) == []


def test_listened_turns_in_trees_are_as_one_at_a_time_and_their_prompts_cost_nothing(tree_model: Any) -> None:
    own = Sample(tuple(range(1, 21)), (30, 31, 32), 1.0)
    words = tuple(Sample((*own.prompt_ids[:cut], 40, 41), (50, 51), 1.0) for cut in (8, 14, 20))
    batch = Batch((GameSample("g", Role.DEFENDER, 1.0, (own,), words),))
    tree, together = check_same_in_a_tree(tree_model, batch, ObjectiveConfig(), listening_coeff=0.7)
    assert tree.num_tokens == own.num_tokens - 1 + 3 * 3, "leaves, whose last token is not read"
    plain = [token_logprobs(tree_model, pack([word], 200)[0]) for word in words]
    by_hand = 0.7 * sum(-each.mean().item() for each in plain) / 3
    own_alone = Batch((replace(batch.games[0], listening=()),))
    logprobs = token_logprobs(tree_model, pack([own], 200)[0], 1.7)
    rest = Trained.of(own_alone, ObjectiveConfig(), StageSpec("self_play", 1, 0.0, 0.2), [logprobs], at_start=True)
    assert together == pytest.approx(rest.loss.item() + by_hand, abs=1e-9)


@pytest.fixture(scope="module")
def tree_model() -> Any:
    return make_tree_model()


def test_imitation_listens_as_the_objective_says_unless_it_says_otherwise() -> None:
    def coeffs(**imitation: Any) -> tuple[float, bool]:
        config = parse_config(
            {"objective": {"listening_coeff": 0.3}, "imitation": imitation, "self_play": {"rounds": 0}}
        )
        return config.imitation_listening_coeff, config.listens

    assert coeffs() == (0.3, True)
    assert coeffs(listening_coeff=0.1) == (0.1, True)
    assert coeffs(listening_coeff=0) == (0.0, False)
    assert coeffs(enabled=False) == (0.3, False)
    assert not parse_config({}).listens
    assert parse_config({"preset": "published"}).objective.listening_coeff == 0


def test_the_seat_that_guesses_may_be_the_first() -> None:
    """In a game of a user's own; what it could have known is that of its own turns, too."""
    episode = told_apart(game(0, Outcome.TIED, 2))
    (positions,) = listened_turns([episode], claim, "all", 100, guesser=Role.ATTACKER).values()
    first = [turn for turn in episode.turns if turn.role is Role.ATTACKER]
    assert [tuple(position.prompt_ids[:-2]) for position in positions] == [turn.prompt_ids for turn in first]
    games = with_listening([], {"a": positions})
    assert turns_of(games, Role.DEFENDER) == []
    assert [len(each.listening) for each in turns_of(games, Role.ATTACKER)] == [len(first)]
    breach = game(1, Outcome.DEFENDER_BREACH, 4, decided_by=1)
    assert guessers_turns(breach, Role.ATTACKER) == [0], "those before the other's breach"
    known = Knowledge()
    scored = tuple(replace(turn, word_logprob=-0.5 if turn.role is Role.ATTACKER else None) for turn in episode.turns)
    known.add_episode(replace(episode, turns=scored))
    assert [turn.games for turn in known.turns()] == [1] * len(first)
