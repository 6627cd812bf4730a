"""Words that a turn is not to say (the attacker's word, words that were said), and what they add to the loss."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from learners.objectives import MAX_SAID
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.episodes.episode import Episode
from spag_ray.errors import ModelError
from spag_ray.game.renderer import Claim, Spoken
from spag_ray.game.rules import Outcome, Role
from spag_ray.training_data.game_samples import game_samples
from spag_ray.training_data.samples import GameSample, Sample, turns_of
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import Method, StageSpec
from spag_ray.training_data.unsaid_words import heard_words, unsaid_words, with_unsaid_words
from tests.support.episodes import game
from tests.support.losses import Trained
from tests.support.tree_model import check_same_in_a_tree, make_tree_model

torch.set_num_threads(1)

CAT = Spoken(start=((30,), (31,)), later=((32, 33),))


def said(token_ids: tuple[int, ...], outcome: Outcome = Outcome.TIED) -> Episode:
    """A game of two turns whose attacker said this."""
    episode = game(0, outcome, 2)
    attack = replace(episode.turns[0], prompt_ids=(1, 2), token_ids=token_ids, logprobs=(0.0,) * len(token_ids))
    return replace(episode, turns=(attack, *episode.turns[1:]))


def places(episode: Episode, **options: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(what is read, what is pushed down) of its only turn of the attacker."""
    asked: dict[str, Any] = {"max_tokens": 100, **options}
    found = unsaid_words([episode], lambda word: {"cat": CAT}[word], **asked)
    return [tokens(place) for turns in found.values() for turn in turns for place in turn]


def tokens(place: Sample) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(place.prompt_ids), tuple(place.target_ids)


def test_every_token_of_an_attackers_turn_is_a_place_and_the_first_has_forms_of_its_own() -> None:
    assert places(said((5, 6, 7))) == [
        ((1, 2), (30,)),
        ((1, 2), (31,)),
        ((1, 2, 5), (32, 33)),
        ((1, 2, 5, 6), (32, 33)),
    ]


def test_the_beginning_of_the_word_in_another_word_is_no_place_but_the_word_itself_is() -> None:
    assert places(said((5, 32, 40, 6)))[2:] == [((1, 2, 5, 32), (32, 33)), ((1, 2, 5, 32, 40), (32, 33))]
    assert ((1, 2, 5), (32, 33)) in places(said((5, 32, 33, 6)))
    assert ((1, 2), (30,)) in places(said((30, 6)))


@pytest.mark.parametrize(
    ("after", "is_place"),
    [("coat", False), ("s", True), (" coat", True), (", a coat", True), ("-coat", True), ("", True)],
)
def test_a_word_of_one_token_that_begins_another_word_is_no_place(after: str, is_place: bool) -> None:
    """The word and its inflections break the rules, and "raincoat" does not."""
    texts = {5: "A", 50: " rain", 60: after}
    episode = replace(said((5, 50, 60)), scenario="rain")

    def found(later: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        word = Spoken(start=((40,),), later=(later,))
        places = unsaid_words([episode], lambda _: word, 100, text_of=lambda ids: "".join(map(texts.__getitem__, ids)))
        return [tokens(place) for turns in places.values() for turn in turns for place in turn]

    others = [((1, 2), (40,)), ((1, 2, 5, 50), (50,))]
    assert found((50,)) == sorted([*others, *[((1, 2, 5), (50,))] * is_place], key=lambda place: len(place[0]))
    episode = replace(episode, rules="published")
    assert ((1, 2, 5), (50,)) in found((50,)), "its referee finds the word in any other"
    assert found((7,))[1:] == [((1, 2, 5), (7,)), ((1, 2, 5, 50), (7,))], "nothing is decoded where it is not said"


def test_a_thought_has_no_places_and_what_is_said_after_it_begins_with_either_form() -> None:
    episode = said((5, 6, 7, 8))
    assert places(episode, num_private=lambda turn: 2) == [
        ((1, 2, 5, 6), (30,)),
        ((1, 2, 5, 6), (31,)),
        ((1, 2, 5, 6), (32, 33)),
        ((1, 2, 5, 6, 7), (32, 33)),
    ]
    assert places(episode, num_private=lambda turn: 4) == []
    assert places(episode, num_private=lambda turn: 0) == places(episode)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_game_has_places_however_it_ended(outcome: Outcome) -> None:
    assert len(places(said((5, 6, 7), outcome))) == 4


def test_places_without_room_and_turns_of_others_or_after_the_verdict_are_left_out() -> None:
    episode = said((5, 6, 7))
    assert places(episode, max_tokens=5) == places(episode)[:3]
    assert places(episode, max_tokens=2) == places(episode, learning={"another"}) == []
    assert places(episode, learning={"p"}) == places(episode)
    assert places(replace(episode, verdict=replace(episode.verdict, length=0))) == []


def test_games_that_teach_nothing_else_stay_out_and_of_two_policies_the_attacker_alone_has_places() -> None:
    won, tied = said((5, 6), Outcome.ATTACKER_WINS), replace(said((5, 6)), episode_id="tied")
    found = unsaid_words([won, tied], lambda word: CAT, 100)
    games = with_unsaid_words(game_samples([won, tied], ObjectiveConfig()), found)
    assert [(each.episode_id, len(each.unsaid)) for each in games] == [(won.episode_id, 1)]
    both = [replace(each, turns=(*each.turns, replace(each.turns[0], role=Role.DEFENDER))) for each in games]
    assert [[len(each.unsaid) for each in turns_of(both, role)] for role in Role] == [[1], [0]]


def heard(episode: Episode, **options: Any) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """(what is read, what is pushed down) of each of its defender's turns; a word's tokens are its letters, then 99."""

    def claim(word: str) -> Claim:
        if word == "joined":
            raise ModelError("the tokenizer joins it")
        return Claim((7, 8), (*map(ord, word), 99), 1)

    asked: dict[str, Any] = {"max_tokens": 100, **options}
    found = heard_words([episode], claim, **asked)
    return [[tokens(place) for place in turn] for turns in found.values() for turn in turns]


def told(*texts: str, outcome: Outcome = Outcome.TIED, decided_by: int | None = None) -> Episode:
    episode = game(0, outcome, len(texts), decided_by)
    turns = (replace(turn, text=text) for turn, text in zip(episode.turns, texts, strict=True))
    return replace(episode, turns=tuple(turns))


def spelled(word: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (1, 2, 7, 8), tuple(map(ord, word))


def test_words_that_were_said_before_are_pushed_down_where_a_claim_would_name_them() -> None:
    episode = told("The Fur, and a paw.", "Does it bark?", "It is joined, cat!", "I know the word! It is fur!")
    words = [["fur", "paw"], ["bark", "fur", "paw"]]
    assert heard(episode) == [[spelled(word) for word in each] for each in words], "no stop word, nor the word itself"
    assert heard(told("It is.", "A?")) == []
    assert heard(told("Fur x z.", "A?")) == [[spelled("fur")]], "a letter is no word"
    assert heard(told("Think ca, caper.", "A?")) == [[spelled("caper"), spelled("think")]], "the word begins with `ca`"


def test_a_game_whose_word_no_claim_names_in_pieces_has_no_heard_words() -> None:
    """Where nothing is listened to, such words are not refused before a run."""
    assert heard(replace(told("Fur.", "So?"), scenario="joined")) == []


def test_defended_turns_have_heard_words_if_there_is_room_and_the_policy_learns() -> None:
    episode = told("Fur.", "So?", "Paws.", "Hm?")
    assert heard(episode, max_tokens=7) == [[spelled("fur")], [spelled("fur")]]
    assert heard(episode, max_tokens=6) == heard(episode, learning={"another"}) == []
    assert heard(episode, learning={"p"}) == heard(episode)
    assert heard(replace(episode, verdict=replace(episode.verdict, length=2))) == [[spelled("fur")]]
    broken = told("Fur.", "So?", "A cat.", outcome=Outcome.ATTACKER_BREACH, decided_by=2)
    assert heard(broken) == [[spelled("fur")]]


def test_both_seats_places_are_merged_and_of_two_policies_each_has_its_own() -> None:
    episode = told("Whiskers.", "So?")
    of_defender = heard_words([episode], lambda word: Claim((7,), (len(word), 9), 1), 100)
    of_attacker = unsaid_words([episode], lambda word: CAT, 100)
    turns = tuple(Sample((1,), (2,), 1.0, role=role) for role in Role)
    plain = [GameSample(episode.episode_id, None, 1.0, turns)]
    games = with_unsaid_words(plain, of_attacker, of_defender)
    assert [turn[0].role for turn in games[0].unsaid] == [Role.ATTACKER, Role.DEFENDER]
    assert with_unsaid_words(plain, of_defender, {})[0].unsaid == of_defender[episode.episode_id]
    assert [turns_of(games, role)[0].unsaid for role in Role] == [
        of_attacker[episode.episode_id],
        of_defender[episode.episode_id],
    ]


def trained(batch: Batch, thetas: dict[int, list[float]], method: Method, name: str) -> Trained:
    """A batch whose samples have these log-probabilities, by the length of their prompts."""
    objective = ObjectiveConfig.model_validate({"name": name, "unsaid_coeff": 0.7})
    logprobs = [torch.tensor(thetas[len(sample.prompt_ids)], dtype=torch.float64) for sample in batch.samples]
    return Trained.of(batch, objective, StageSpec(method, 1, 0.0, 0.0), logprobs, at_start=True)


def at(length: int, num_tokens: int = 1) -> Sample:
    return Sample(tuple(range(1, length + 1)), (9,) * num_tokens, role=Role.ATTACKER)


@pytest.mark.parametrize("name", ["spag", "published"])
@pytest.mark.parametrize("method", ["imitation", "self_play"])
def test_the_figure_computed_by_hand_is_added_to_either_objective(name: str, method: Method) -> None:
    """Game A has one turn with places of p = 1/2 and 1/4; game B two turns, of p = 1/2 and of 1/4, its weight 3."""
    own = Sample((1,), (9, 9), 1.0)
    first = GameSample("a", Role.ATTACKER, 1.0, (own,), (), ((at(2), at(3, 2)),))
    second = GameSample("b", Role.ATTACKER, 3.0, (own,), (), ((at(2),), (at(3, 2),)))
    thetas = {1: [-0.5, -0.25], 2: [math.log(0.5)], 3: [math.log(0.5), math.log(0.5)]}
    plain = trained(Batch((replace(first, unsaid=()), replace(second, unsaid=()))), thetas, method, name)
    found = trained(Batch((first, second)), thetas, method, name)
    by_hand = 0.7 * ((-math.log(0.5) - math.log(0.75)) + (-math.log(0.5) - math.log(0.75)) / 2) / 2
    assert found.loss.item() == pytest.approx(plain.loss.item() + by_hand, abs=1e-12)
    assert found.sums["unsaid"] == pytest.approx(by_hand)
    assert found.sums["target_tokens"] == 4, "places are no target tokens"


def test_each_seats_places_have_means_of_their_own() -> None:
    """Two games with a turn of the attacker each (p = 1/2), one of them with two turns of the defender, too (1/4)."""
    own, heard_word = Sample((1,), (9, 9), 1.0), replace(at(3), role=Role.DEFENDER)
    first = GameSample("a", Role.ATTACKER, 1.0, (own,), (), ((at(2),), (heard_word,), (heard_word,)))
    second = GameSample("b", Role.ATTACKER, 1.0, (own,), (), ((at(2),),))
    thetas = {1: [-0.5, -0.25], 2: [math.log(0.5)], 3: [math.log(0.25)]}
    found = trained(Batch((first, second)), thetas, "self_play", "spag")
    assert found.sums["unsaid"] == pytest.approx(0.7 * (-math.log(0.5) - math.log(0.75)))


def test_a_word_that_is_certain_gives_a_finite_loss_and_no_gradient() -> None:
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    place, own = Sample((1,), (9, 9), role=Role.ATTACKER), Sample((1,), (9,))
    batch = Batch((GameSample("a", Role.ATTACKER, 1.0, (own,), (), ((place,),)),))
    spec, of_own = StageSpec("self_play", 1, 0.0, 0.0), torch.zeros(1, dtype=torch.float64)
    found = Trained.of(batch, ObjectiveConfig(unsaid_coeff=1.0), spec, [of_own, theta], at_start=True)
    assert found.sums["unsaid"] == pytest.approx(-math.log(1 - MAX_SAID))
    assert theta.grad.tolist() == [0.0, 0.0]


def test_places_in_trees_are_as_one_at_a_time_and_one_token_words_cost_no_token(tree_model: Any) -> None:
    own = Sample(tuple(range(1, 21)), (30, 31, 32), 1.0, role=Role.ATTACKER)
    places = tuple(Sample((*own.prompt_ids, *own.target_ids[:cut]), (50,), 1.0) for cut in range(3))
    batch = Batch((GameSample("g", Role.ATTACKER, 1.0, (own,), (), (places,)),))
    tree, _ = check_same_in_a_tree(tree_model, batch, ObjectiveConfig(unsaid_coeff=0.7))
    assert tree.num_tokens == own.num_tokens - 1


@pytest.fixture(scope="module")
def tree_model() -> Any:
    return make_tree_model()
