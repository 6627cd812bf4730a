"""What is trained on in each stage."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.models import load_tokenizer
from cluster.learning.stage_samples import StageSamples, TrainingStage
from cluster.tracking.recorder import Recorder
from spag_ray.config.parts import PAID_ENDS
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.errors import InputError
from spag_ray.game.renderer import Claim, Spoken
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.game import TabooGame, taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.stages import IMITATED, Stage
from spag_ray.training_data.rewards import RoleBaselines, RoleWindow
from spag_ray.training_data.samples import Claiming, Sample, turns_of
from spag_ray.training_data.stage_spec import StageSpec
from tests.support.episodes import game
from tests.support.families import tokenizer_of
from tests.support.taboo import history_of

GAMES = [game(0, Outcome.ATTACKER_WINS), game(1, Outcome.DEFENDER_WINS), game(2, Outcome.TIED)]


def samples(folder: Path, learning: str = "p", **config: Any) -> StageSamples:
    nobody: Any = None
    return StageSamples(RunConfig.model_validate(config), nobody, nobody, {learning}, Recorder(folder))


def test_self_play_learns_decided_games_at_the_temperature_they_were_sampled_at(tmp_path: Path) -> None:
    made = samples(tmp_path, sampling={"temperature": 0.8}, self_play={"batch_games": 7, "learning_rate": 2e-5})
    stage = made.self_play(Stage.of_round(1), GAMES, "round 1", [], None)
    assert [each.role for each in stage.games] == list(Role)
    assert (stage.stage, stage.batch_games) == (Stage.of_round(1), 7)
    assert stage.spec == StageSpec("self_play", 0, 2e-5, 0.2, temperature=0.8)
    published = samples(tmp_path, objective={"loss": "published"}, sampling={"temperature": 0.8})
    assert published.self_play(Stage.of_round(1), GAMES, "round 1", [], None).spec.temperature == 1.0


def test_only_the_turns_of_policies_that_learn_are_learned(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="round 1: none of 3 games"):
        samples(tmp_path, learning="another").self_play(Stage.of_round(1), GAMES, "round 1", [], None)


def test_a_round_without_a_decided_game_ends_with_advice_and_a_streams_version_does_not(tmp_path: Path) -> None:
    made = samples(tmp_path)
    with pytest.raises(InputError, match=r"round 2: none of 1 games was won by either side.*imitation"):
        made.self_play(Stage.of_round(2), GAMES[2:], "round 2", [], None)
    assert made.self_play(Stage.of_round(2), GAMES[2:], "spag-2", [], None, {"taboo": RoleWindow(8)}).games == []


def test_a_round_that_agrees_trains_nothing_and_one_without_a_decided_game_is_refused(tmp_path: Path) -> None:
    made = samples(tmp_path, objective={"drop_agreeing": True})
    alike = [replace(GAMES[0], number=number, episode_id=f"s/{number}") for number in range(3)]
    assert made.self_play(Stage.of_round(2), alike, "round 2", [], None).games == []
    with pytest.raises(InputError, match="round 2: none of 1 games was won by either side"):
        made.self_play(Stage.of_round(2), GAMES[2:], "round 2", [], None)


def test_a_phase_without_gains_that_trains_nothing_is_refused_like_a_run_without_them(tmp_path: Path) -> None:
    tied = GAMES[2]
    turns = tuple(replace(turn, listener_logprob=-1.0 - place) for place, turn in enumerate(tied.turns))
    objective, phases = {"drop_agreeing": True, "information_gain": 1}, [{"rounds": 1, "information_gain": 0}]
    made = samples(tmp_path, objective=objective, self_play={"phases": phases})
    with pytest.raises(InputError, match="round 1: none of 1 games was won by either side"):
        made.self_play(Stage.of_round(1), [replace(tied, turns=turns)], "round 1", [])
    assert made.self_play(Stage.of_round(2), [replace(tied, turns=turns)], "round 2", []).games


def test_groups_are_counted_that_all_agree_or_paid_nothing(tmp_path: Path) -> None:
    made = samples(tmp_path, objective={"drop_agreeing": True}, words={"games_per_word": 3})
    won, lost, tied = GAMES
    ends = {"river": [won, won, tied], "piano": [won, won, lost], "tiger": [tied] * 3, "apple": [lost] * 6}
    played = [replace(each, scenario=word) for word, games in ends.items() for each in games]
    assert made.num_dropped_groups(Stage.of_round(1), played) == 4, "of the river, the tiger, and two of the apple"
    kept = samples(tmp_path, words={"games_per_word": 3})
    assert kept.num_dropped_groups(Stage.of_round(1), played) == 0, "none are left out"
    others = samples(tmp_path, learning="q", objective={"drop_agreeing": True}, words={"games_per_word": 3})
    assert others.num_dropped_groups(Stage.of_round(1), played) == 0, "nobody who learns has played"


class Claims:
    """A renderer as far as it is asked for claims."""

    game = TabooGame()

    def claim_of(self, scenario: str) -> Claim:
        return self.claim(scenario)

    def claim(self, word: str) -> Claim:
        return Claim((7,), (8, 9), 1)


def listening(folder: Path, renderer: Any = None, **config: Any) -> StageSamples:
    nobody: Any = None
    words: Any = renderer or Claims()
    return StageSamples(RunConfig.model_validate(config), nobody, words, {"p"}, Recorder(folder))


def heard(stage: TrainingStage) -> list[int]:
    return [len(each.listening) for each in stage.games]


def test_a_tie_is_listened_to_and_a_round_of_ties_alone_is_learned(tmp_path: Path) -> None:
    made = listening(tmp_path, objective={"listening_coeff": 0.5}, imitation={"listening_coeff": 0.25})
    stage = made.self_play(Stage.of_round(1), GAMES, "round 1", [], None)
    assert heard(stage) == [2, 2, 2]
    assert stage.spec.listening_coeff == 0.5
    assert heard(made.self_play(Stage.of_round(1), GAMES[2:], "round 1", [], None)) == [2]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["decided"] for line in lines] == [2, 0]
    stage = made.imitation(GAMES)
    assert heard(stage) == [2, 2, 2]
    assert stage.spec.listening_coeff == 0.25
    last = listening(tmp_path, objective={"listening_coeff": 0.5, "listening_turns": "last"}).imitation(GAMES)
    assert heard(last) == [1, 1, 1]
    assert last.spec.listening_coeff == 0.5


def test_the_recorded_weights_are_those_of_trained_games_not_of_one_that_only_listens(tmp_path: Path) -> None:
    made = listening(tmp_path, objective={"listening_coeff": 0.5, "drop_agreeing": True, "learn_from": "both"})
    won, lost, _ = GAMES
    ends = {"piano": [won, won, lost], "river": [won, won]}
    of_words = [replace(each, scenario=word) for word, games in ends.items() for each in games]
    played = [replace(each, number=place, episode_id=f"s/{place}") for place, each in enumerate(of_words)]
    stage = made.self_play(Stage.of_round(1), played, "round 1", [], None)
    assert [bool(each.turns) for each in stage.games] == [True] * 3 + [False] * 2
    [line] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (line["decided"], line["attacker_weight"], line["defender_weight"]) == (3, 0.75, 1.5)


@pytest.mark.parametrize(("policies", "weight"), [("shared", 0.75), ("separate", 1.0)])
def test_the_recorded_weights_are_those_that_learners_use(policies: str, weight: float, tmp_path: Path) -> None:
    """With policies: separate each seat's games weigh the same."""
    made = samples(tmp_path, policies=policies)
    stage = made.self_play(Stage.of_round(1), [GAMES[0], replace(GAMES[0], episode_id="s/9"), GAMES[1]], "round 1", [])
    [line] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    used = stage.games if policies == "shared" else turns_of(stage.games, Role.ATTACKER)
    assert line["attacker_weight"] == used[0].weight == weight


@pytest.mark.parametrize(("part", "limit"), [("learner", "max_tokens_per_microbatch"), ("engine", "max_model_len")])
def test_a_position_that_no_micro_batch_or_no_engine_holds_is_left_out(part: str, limit: str, tmp_path: Path) -> None:
    long = [replace(each, turns=tuple(replace(t, prompt_ids=(1,) * 14) for t in each.turns)) for each in GAMES]
    for fits, tokens in ((True, 17), (False, 16)):
        made = listening(tmp_path, objective={"listening_coeff": 0.5}, **{part: {limit: tokens}})
        assert heard(made.self_play(Stage.of_round(1), long, "round 1", [], None)) == ([2, 2, 2] if fits else [0, 0])


class Words(Claims):
    """A renderer as far as it is asked for claims, for words in turns, and for rows of instructions."""

    def claim(self, word: str) -> Claim:
        return Claim((7,), (len(word), 9), 1)

    def spoken(self, word: str) -> Spoken:
        return Spoken(((13,),), ((14,),))

    def num_private(self, turn: Turn) -> int:
        return 0

    def query_ids(self, text: str) -> tuple[int, ...]:
        return (1,)

    def answer_ids(self, text: str) -> tuple[int, ...]:
        return (int(text),)


def between(attacker: str, defender: str, number: int = 0) -> Episode:
    """Won by the attacker; each seat's turns are of its policy, and say a word."""
    played = game(number, Outcome.ATTACKER_WINS, decided_by=3)
    names = {Role.ATTACKER: attacker, Role.DEFENDER: defender}
    return replace(played, turns=tuple(replace(t, text="whiskers", policy=names[t.role]) for t in played.turns))


def unsaid(stage: TrainingStage) -> list[list[str]]:
    return [[str(turn[0].role) for turn in each.unsaid] for each in stage.games]


def test_turns_of_policies_that_do_not_learn_are_neither_listened_to_nor_told_what_not_to_say(tmp_path: Path) -> None:
    made = listening(tmp_path, Words(), objective={"listening_coeff": 0.5, "unsaid_coeff": 0.3, "learn_from": "both"})
    games = [between("p", "p", 0), between("p", "past p", 1), between("past p", "p", 2)]
    stage = made.self_play(Stage.of_round(1), games, "round 1", [], None)
    assert heard(stage) == [2, 0, 2]
    assert unsaid(stage) == [["attacker"] * 2 + ["defender"] * 2, ["attacker"] * 2, ["defender"] * 2]
    expert = [between("expert", "expert")]
    assert (heard(made.imitation(expert)), unsaid(made.imitation(expert))) == ([2], [unsaid(stage)[0]])


def test_what_an_attacker_thinks_is_not_pushed_down(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("chatml")
    template = load_template("chat").model_copy(update={"thought": "<think>{thought}</think>"})
    renderer = taboo_renderer(template, tokenizer, 5)
    thought, public = "<think>It is a river, so I say water.</think>", " It is in water."
    ids = renderer.reply_ids(thought + public)
    prompt = renderer.prompt((), Role.ATTACKER, "river")
    played = game(1, Outcome.DEFENDER_WINS, 2, 1)
    attack = replace(
        played.turns[0], text=public.strip(), prompt_ids=prompt, token_ids=ids, logprobs=(-0.5,) * len(ids)
    )
    played = replace(played, turns=(attack, replace(played.turns[1], text="river")), scenario="river")
    config = RunConfig.model_validate({"objective": {"unsaid_coeff": 0.3, "learn_from": "both"}})
    made = StageSamples(config, tokenizer, renderer, {"p"}, Recorder(tmp_path))
    (trained,) = made.self_play(Stage.of_round(1), [played], "round 1", [], None).games
    ((*places,),) = (turn for turn in trained.unsaid if turn[0].role is Role.ATTACKER)
    read = {tokenizer.decode(place.prompt_ids[len(prompt) :]) for place in places}
    assert all(text.startswith(thought) for text in read)
    assert min(read, key=len).strip() == thought, "right after the thought it speaks"


@pytest.mark.parametrize(("public", "is_place"), [("x is it.", True), ("xy is it.", False)])
def test_the_beginning_of_another_word_is_not_pushed_down(public: str, is_place: bool, tmp_path: Path) -> None:
    tokenizer = tokenizer_of("chatml")  # a token is a byte
    renderer = taboo_renderer(load_template("chat"), tokenizer, 5)
    prompt, ids = renderer.prompt((), Role.ATTACKER, "x"), renderer.reply_ids(public)
    played = game(1, Outcome.DEFENDER_WINS, 2, 1)
    attack = replace(played.turns[0], text=public, prompt_ids=prompt, token_ids=ids, logprobs=(-0.5,) * len(ids))
    played = replace(played, turns=(attack, played.turns[1]), scenario="x")
    config = RunConfig.model_validate({"objective": {"unsaid_coeff": 0.3, "learn_from": "both"}})
    made = StageSamples(config, tokenizer, renderer, {"p"}, Recorder(tmp_path))
    (trained,) = made.self_play(Stage.of_round(1), [played], "round 1", []).games
    ((*places,),) = (turn for turn in trained.unsaid if turn[0].role is Role.ATTACKER)
    at_first = {tokenizer.decode(place.target_ids) for place in places if len(place.prompt_ids) == len(prompt)}
    assert at_first == ({"x", "X"} if is_place else {"X"})


def test_imitation_has_rates_and_a_claiming_term_of_its_own(tmp_path: Path) -> None:
    objective = {"listening_coeff": 1.0, "claiming_coeff": 0.5, "claiming_words": 0.99, "kl_coeff": 0.3}
    imitation = {"kl_coeff": 0.07, "learning_rate": 3e-6, "claiming_coeff": 0.25}
    made = listening(tmp_path, Words(), objective=objective, imitation=imitation, sampling={"temperature": 0.8})
    won = replace(game(1, Outcome.DEFENDER_WINS, decided_by=3), scenario="cat")
    stage = made.imitation([won])
    assert (stage.spec.learning_rate, stage.spec.kl_coeff) == (3e-6, 0.07)
    assert [list(turn.target_ids) for turn in stage.games[0].turns] == [[3, 4]], "its claim is not imitated"
    played = made.self_play(Stage.of_round(1), [won], "round 1", [], None)
    assert played.spec.kl_coeff == 0.3
    shares = [[each.claiming for each in found.games[0].listening] for found in (stage, played)]
    assert shares == [[Claiming(1, 1, 0.8, share)] * 2 for share in (0.5, 1.0)]


def test_a_round_has_the_rate_and_the_coefficient_of_its_number(tmp_path: Path) -> None:
    self_play = {"rounds": 3, "learning_rate": 1e-4, "last_learning_rate": 1e-6, "last_kl_coeff": 0.002}
    made = samples(tmp_path, self_play=self_play, objective={"kl_coeff": 0.2})
    stages = [made.self_play(Stage.of_round(number), GAMES, "a round", [], None) for number in (1, 2, 3)]
    assert [stage.spec.learning_rate for stage in stages] == pytest.approx([1e-4, 1e-5, 1e-6])
    assert [stage.spec.kl_coeff for stage in stages] == pytest.approx([0.2, 0.02, 0.002])


def test_games_that_were_sampled_greedily_are_learned_at_a_temperature_of_one(tmp_path: Path) -> None:
    made = samples(tmp_path, sampling={"temperature": 0.0})
    assert made.self_play(Stage.of_round(1), GAMES, "round 1", [], None).spec.temperature == 1.0


def test_log_probabilities_of_prompts_as_they_were_played_alone_are_used(tmp_path: Path) -> None:
    stage = samples(tmp_path).self_play(Stage.of_round(1), GAMES, "round 1", [], None)
    turn = stage.games[0].turns[0]
    assert turn == replace(turn, sampler_logprobs=(-0.5, -0.5))


def test_rows_of_instructions_are_mixed_with_imitated_games_in_an_order_of_the_seed(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"query": "q", "target": str(number)} for number in range(10, 30)]))

    def order(seed: int) -> list[str]:
        made = listening(tmp_path, Words(), imitation={"sft_file": str(file)}, seed=seed)
        return [each.episode_id for each in made.imitation(GAMES).games]

    plain = ["s/0", "s/1", *(f"sft-{number:06d}" for number in range(20))]
    assert sorted(order(0)) == plain
    assert plain != order(0) == order(0) != order(1)


def games_file(folder: Path, *games: tuple[str, list[str]]) -> Path:
    """Of games about these words, in which this is said."""
    rows = [{"history": history_of(*said), "target_word": word, "max_turns": 5} for word, said in games]
    (folder / "games.json").write_text(json.dumps(rows))
    return folder / "games.json"


def test_games_from_a_file_and_under_other_prompts_are_listened_to(tmp_path: Path, tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    renderer = taboo_renderer(load_template("chat"), tokenizer, 5)
    file = games_file(tmp_path, ("river", ["it is in water .", "i know the word ! it is `river` !"]))
    settings: dict[str, Any] = {"imitation": {"source": str(file), "listening_coeff": 0.5}}
    for render in ("exact", "varied"):
        config = RunConfig.model_validate({**settings, "render": render})
        made = StageSamples(config, tokenizer, renderer, {"p"}, Recorder(tmp_path))
        ((won,),) = [made.imitation(None).games]
        ((turn,), (word,)) = won.turns, won.listening
        claim = renderer.claim("river")
        assert word == Sample([*turn.prompt_ids, *claim.opening_ids], claim.word_ids, role=Role.DEFENDER), (
            "the prompt is the turn's own"
        )


def test_games_from_a_file_about_held_out_words_are_not_imitated(tmp_path: Path, tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    renderer = taboo_renderer(load_template("chat"), tokenizer, 5)
    games = [(word, ["it is so .", f"i know the word ! it is `{word}` !"]) for word in ("river", "music")]
    file = games_file(tmp_path, *games)
    config = RunConfig.model_validate({"imitation": {"source": str(file), "listening_coeff": 0.5}})
    told: list[str] = []

    def made(*held_out: str) -> StageSamples:
        return StageSamples(config, tokenizer, renderer, {"p"}, Recorder(tmp_path), held_out, told.append)

    (left,) = made("River").imitation(None).games
    assert tokenizer.decode(left.listening[0].target_ids).strip().startswith("music")
    assert told == [f"{file}: 1 of 2 games are about held-out words: left out"]
    with pytest.raises(InputError, match="every game in it is about a word that is held out"):
        made("river", "music").imitation(None)


def test_games_from_a_file_have_the_guesses_of_the_run(tmp_path: Path, tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    renderer = taboo_renderer(load_template("chat"), tokenizer, 5)
    replies = ("i know the word ! it is `music` !", "i know the word ! it is `river` !")
    file = games_file(tmp_path, ("river", [text for reply in replies for text in ("it is in water .", reply)]))
    for max_guesses, winner in ((1, Role.ATTACKER), (2, Role.DEFENDER)):
        settings: dict[str, Any] = {"imitation": {"source": str(file)}, "game": {"max_guesses": max_guesses}}
        config = RunConfig.model_validate(settings)
        (game,) = StageSamples(config, tokenizer, renderer, {"p"}, Recorder(tmp_path)).imitation(None).games
        assert game.role is winner


def test_imitation_takes_the_experts_games(tmp_path: Path) -> None:
    stage = samples(tmp_path, imitation={"batch_games": 3}).imitation(GAMES)
    assert (stage.stage, stage.batch_games, len(stage.games)) == (IMITATED, 3, 2)
    assert (stage.spec.method, stage.spec.temperature) == ("imitation", 1.0)
    assert stage.sft == []


def test_imitation_of_both_sides_takes_the_losers_turns_too(tmp_path: Path) -> None:
    stage = samples(tmp_path, imitation={"learn_from": "both"}).imitation(GAMES)
    assert [[turn.role for turn in each.turns] for each in stage.games] == [list(Role) * 2] * 2


KUHN = [
    replace(game(number, outcome), episode_id=f"k/{number}", number=number, game="kuhn")
    for number, outcome in ((3, Outcome.DEFENDER_WINS), (4, Outcome.DEFENDER_WINS), (5, Outcome.ATTACKER_WINS))
]
PAYS = {Outcome.ATTACKER_WINS: (2.0, -2.0), Outcome.DEFENDER_WINS: (-1.0, 1.0)}
KUHN = [replace(each, verdict=replace(each.verdict, payoffs=PAYS[each.verdict.outcome])) for each in KUHN]


def of_two(folder: Path, **kuhn: Any) -> StageSamples:
    games = [{"name": "taboo", "share": 0.5}, {"name": "kuhn", "share": 0.5, "objective": kuhn}]
    return samples(folder, games=games, prompts="lines", objective={"baseline": "moving"})


def test_baselines_and_weights_are_those_of_the_game_and_the_role(tmp_path: Path) -> None:
    """Taboo: one win each. Kuhn: two of three won by the defender."""
    baselines = {"taboo": RoleBaselines(0.5), "kuhn": RoleBaselines(0.5)}
    baselines["kuhn"].values[Role.DEFENDER] = 0.25
    mixed = [KUHN[0], GAMES[0], KUHN[1], GAMES[1], KUHN[2]]
    stage = of_two(tmp_path).self_play(Stage.of_round(1), mixed, "round 1", [], baselines)
    assert [each.episode_id for each in stage.games] == [each.episode_id for each in mixed], "as they were played"
    assert [each.weight for each in stage.games] == [0.75, 1.0, 0.75, 1.0, 1.5]
    paid = [sum(turn.advantage for turn in each.turns) for each in stage.games]
    assert paid == pytest.approx([1 - 0.25, 1.0, 1 - 0.25, 1.0, 2.0])
    assert baselines["taboo"].values == {Role.ATTACKER: -0.25, Role.DEFENDER: 0.25}
    assert baselines["kuhn"].values == {Role.ATTACKER: 0.625, Role.DEFENDER: -0.59375}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["game"], line["decided"]) for line in lines] == [("taboo", 2), ("kuhn", 3)]


def test_a_breach_says_nothing_of_its_seats_weight(tmp_path: Path) -> None:
    played = [game(0, Outcome.ATTACKER_WINS), game(1, Outcome.ATTACKER_WINS), game(2, Outcome.DEFENDER_WINS)]
    broken = game(3, Outcome.ATTACKER_BREACH, num_turns=3, decided_by=2)
    paid = {"payoffs": {"attacker_breach": [-1, None]}}
    samples(tmp_path, game=paid).self_play(Stage.of_round(1), [*played, broken], "round 1", [], None)
    (line,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (line["decided"], line["attacker_weight"], line["defender_weight"]) == (4, 0.75, 1.5)


def test_a_game_may_have_no_role_weights_of_its_own(tmp_path: Path) -> None:
    made = of_two(tmp_path, role_weights="none", baseline="none")
    stage = made.self_play(Stage.of_round(1), [*GAMES[:2], *KUHN], "round 1", [], {"taboo": RoleBaselines()})
    assert [each.weight for each in stage.games] == [1.0] * 5


def test_a_version_of_a_stream_may_have_games_of_one_kind_alone(tmp_path: Path) -> None:
    windows = {"taboo": RoleWindow(8, "aaad"), "kuhn": RoleWindow(8)}
    stage = of_two(tmp_path).self_play(Stage.of_round(1), KUHN, "spag-1", [], None, windows)
    assert len(stage.games) == 3
    assert (windows["taboo"].winners, windows["kuhn"].winners) == ("aaad", "dda")
    with pytest.raises(InputError, match="round 1: none of 1 games"):
        of_two(tmp_path).self_play(Stage.of_round(1), GAMES[2:], "round 1", [])


def test_turns_are_paid_for_gains_as_the_phase_of_their_round_says(tmp_path: Path) -> None:
    """Of the first game, whose hints told the listener 0.1, then 0.2 more."""
    first = GAMES[0]
    known = [0.1, 0.2, None, 0.4]
    assert len(first.turns) == len(known)
    heard = [None if p is None else math.log(p) for p in known]
    turns = tuple(replace(turn, listener_logprob=p) for turn, p in zip(first.turns, heard, strict=True))
    self_play = {"phases": [{"rounds": 1, "information_gain": 0}, {"rounds": 1, "information_gain": 2}]}
    made = samples(tmp_path, objective={"information_gain": 1, "decay": 1}, self_play=self_play)

    def taught(number: int) -> list[tuple[str, float]]:
        stage = made.self_play(Stage.of_round(number), [replace(first, turns=turns)], str(number), [])
        return [(str(turn.role), round(turn.advantage, 6)) for each in stage.games for turn in each.turns]

    assert taught(1) == [("attacker", 0.5), ("attacker", 0.5)], "it won"
    assert taught(2) == [("attacker", 0.7), ("defender", 0.4), ("attacker", 0.9)]
    assert taught(3) == [("attacker", 0.6), ("defender", 0.2), ("attacker", 0.7)]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_round_is_paid_by_its_phase_and_a_moving_baseline_goes_on(is_stream: bool, tmp_path: Path) -> None:
    """Round 1 pays both seats alike; round 2 is the paper's. The baselines are .375 in between, for both seats."""
    phase = {"rounds": 1, "payoffs": {"right_guess": [1, 1], "wrong_guess": [-0.5, -0.5], "cooperative": True}}
    objective = {"learn_from": "both", "baseline": "moving", "baseline_decay": 0.5, "decay": 0.5}
    made = samples(tmp_path, objective=objective, self_play={"phases": [phase]})
    baselines, windows = {"taboo": RoleBaselines(0.5)}, {"taboo": RoleWindow(8)} if is_stream else None

    def taught(number: int) -> list[list[tuple[str, float]]]:
        stage = made.self_play(Stage.of_round(number), GAMES[:2], str(number), [], baselines, windows)
        return [[(str(turn.role), round(turn.advantage, 6)) for turn in each.turns] for each in stage.games]

    def shared(attacker: float, defender: float) -> list[tuple[str, float]]:
        return [
            (role, round(value * share, 6))
            for share in (1 / 3, 2 / 3)
            for role, value in (("attacker", attacker), ("defender", defender))
        ]

    assert taught(1) == [shared(-0.5, -0.5), shared(1, 1)]
    assert baselines["taboo"].values == {Role.ATTACKER: 0.375, Role.DEFENDER: 0.375}
    assert taught(2) == [shared(1 - 0.375, -1 - 0.375), shared(-1 - 0.375, 1 - 0.375)]
    assert baselines["taboo"].values == {Role.ATTACKER: -0.15625, Role.DEFENDER: 0.34375}
    if windows is not None:
        assert windows["taboo"].winners == "adad"


def test_games_that_agree_are_left_out_by_the_payoffs_of_their_phase(tmp_path: Path) -> None:
    """Round 1 pays wins of both seats alike, so all games agree; in round 2 they do not, and round 3 pays nothing."""
    alike = {"right_guess": [0.5, 0.5], "wrong_guess": [0.5, 0.5], "cooperative": True}
    phases = [{"rounds": 1, "payoffs": alike}, {"rounds": 1, "payoffs": {}}]
    nothing = {"payoffs": dict.fromkeys(PAID_ENDS, (None, None))}
    objective = {"drop_agreeing": True, "learn_from": "both"}
    made = samples(tmp_path, objective=objective, self_play={"phases": phases}, game=nothing)
    assert made.self_play(Stage.of_round(1), GAMES[:2], "round 1", [], None).games == []
    assert len(made.self_play(Stage.of_round(2), GAMES[:2], "round 2", [], None).games) == 2
    with pytest.raises(InputError, match="round 3: none of 2 games"):
        made.self_play(Stage.of_round(3), GAMES[:2], "round 3", [], None)
