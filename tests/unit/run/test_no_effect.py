"""Values that have no effect are warned of, and a run that would train nothing is refused."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cluster.checks.preflight import check_files
from cluster.cli import app
from cluster.commands import doctor, train
from cluster.launch.placed_run import idle_values
from cluster.planning.plan import make_plan, plan_lines, print_plan
from cluster.run.parts import Prepared
from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.no_effect import few_imitation_steps, values_without_effect
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from tests.support.settings import config_of
from tests.support.shipped import SHIPPED

KUHN = {"name": "kuhn", "share": 0.75}
TABOO = {"name": "taboo", "share": 0.25}


@pytest.mark.parametrize("path", SHIPPED, ids=[path.name for path in SHIPPED])
def test_no_shipped_configuration_has_a_value_without_effect(path: Path) -> None:
    config = load_config(str(path))
    assert values_without_effect(config) == []
    assert few_imitation_steps(config) is None


def test_a_part_that_is_switched_off_is_one_line() -> None:
    config = load_config("quickstart", ["imitation.enabled=false"])
    lines = [line for line in values_without_effect(config) if "imitation." in line]
    assert len(lines) == 1
    assert lines[0].startswith("imitation.games, imitation.")
    assert lines[0].endswith(" have no effect, because imitation.enabled is False")


def test_what_an_estimator_sets_itself_is_not_named() -> None:
    for settings in (
        {"policies": "separate", "objective": {"advantage": "rloo"}},
        {"objective": {"advantage": "rloo", "role_weight_cap": 8}},  # of imitation
        {"objective": {"gain_of": "nats"}},
        {"objective": {"gain_event": "reply"}},
    ):
        keys = {line.partition(":")[0] for line in values_without_effect(RunConfig.model_validate(settings))}
        own = {f"objective.{key}" for key in ("role_weights", "role_weight_cap", "gain_clip", "gain_seats")}
        assert not keys & own, settings


def test_the_defaults_have_an_effect_or_are_not_mentioned() -> None:
    assert values_without_effect(parse_config({})) == []
    assert values_without_effect(parse_config({"preset": "published"})) == []
    assert values_without_effect(parse_config({"objective": {"loss": "published"}})) == []


STREAM = "schedule=stream; self_play.games_per_round=64"


@pytest.mark.parametrize(
    ("settings", "why", "mended"),  # the first of the settings is the one that is named
    [
        ("objective.constant_length=256", "objective.length_norm is mean", "objective.length_norm=constant"),
        (
            "objective.role_weights=none; policies=separate",
            "with policies: separate each seat has a model of its own",
            "policies=shared",
        ),
        (
            f"stream.role_weight_window=64; objective.role_weights=none; {STREAM}",
            "objective.role_weights is none",
            "objective.role_weights=balanced",
        ),
        (
            "objective.mismatch_cap=4.0; learner.reference=engine",
            "learner.reference is engine",
            "learner.reference=recompute",
        ),
        ("objective.loser_turns=deciding", "objective.learn_from is winners", "objective.learn_from=both"),
        ("self_play.last_kl_coeff=0.5; objective.kl_coeff=0", "objective.kl_coeff is 0", "objective.kl_coeff=0.2"),
        ("self_play.last_learning_rate=1e-06; self_play.rounds=1", "self_play.rounds is 1", "self_play.rounds=2"),
        (
            "objective.kl_reference_every=3; objective.kl_reference=start; self_play.rounds=3",
            "self_play.rounds is 3",
            "objective.kl_reference_every=2",
        ),
        (
            "objective.kl_reference_average=0.9; objective.kl_reference=start; self_play.rounds=1",
            "self_play.rounds is 1",
            "self_play.rounds=2",
        ),
        (
            "game.payoffs.early_guess=[0.0, -0.2]",
            "game.max_guesses is 1",
            "game.payoffs.tie=[-0.1, -0.1]; game.max_guesses=2; objective.learn_from=both",
        ),
        (
            "objective.baseline_decay=0.9; objective.baseline=mean",
            "objective.baseline is mean",
            "objective.baseline=moving",
        ),
        (
            "objective.kl_weighting=ratio; objective.loss=published",
            "objective.loss is published",
            "objective.loss=spag",
        ),
        ("objective.sft_coeff=0.1", "no self_play.sft_file", "self_play.sft_file=rows.json"),
        (
            "objective.claiming_words=0.5",
            "objective.claiming_coeff is 0",
            "objective.claiming_coeff=0.1; objective.listening_coeff=1",
        ),
        ("objective.gain_clip=0.25", "objective.information_gain is 0", "objective.information_gain=0.5"),
        (
            "self_play.mix_share=0.5; self_play.on_collapse=warn",
            "self_play.on_collapse is warn",
            "self_play.on_collapse=mix; evaluation.against=[base]",
        ),
        ("stream.max_lag=5", "schedule is rounds", STREAM),
        ("evaluation.task_limit=5", "evaluation.tasks is empty", "evaluation.tasks=[piqa]"),
        ("league.snapshot_every=4", "league.past_share is 0", "league.past_share=0.2"),
        (
            "imitation.games=7; imitation.source=games.json",
            "all games of imitation.source",
            "imitation.source=scripted; imitation.batch_games=2",
        ),
        (
            "learner.freeze_embeddings=True; learner.lora={}",
            "learner.lora never trains embeddings",
            "learner.lora=null",
        ),
        ("varied_prompts=own.yaml", "render is exact", "render=varied"),
        ("self_play.batch_games=200", "more than self_play.games_per_round, 150", "self_play.batch_games=150"),
        ("learner.keep_moments=True; self_play.rounds=1", "self_play.rounds is 1", "self_play.rounds=2"),
        (
            f"learner.keep_moments=True; {STREAM}",
            "a stream is one stage, which keeps Adam's moments",
            "schedule=rounds",
        ),
        ("objective.mismatch_cap=4.0; render=varied", "with render: varied no log-prob", "render=exact"),
        ("imitation.learning_rate=1e-05; imitation.enabled=false", "imitation.enabled is F", "imitation.enabled=true"),
        ("imitation.sft_file=rows.json; imitation.enabled=false", "imitation.enabled is F", "imitation.enabled=true"),
        ("self_play.learning_rate=1e-05; self_play.rounds=0", "self_play.rounds is 0", "self_play.rounds=1"),
        ("self_play.games_per_round=300; self_play.rounds=0", "self_play.rounds is 0", "self_play.rounds=1"),
        ("objective.entropy_coeff=0.1; self_play.rounds=0", "self_play.rounds is 0", "self_play.rounds=1"),
        ("objective.kl_coeff=0.1; self_play.rounds=0", "self_play.rounds is 0", "self_play.rounds=1"),
        ("checkpoint.keep_last=5; checkpoint.enabled=false", "checkpoint.enabled is F", "checkpoint.enabled=true"),
        ("checkpoint.every_s=60.0; checkpoint.enabled=false", "checkpoint.enabled is F", "checkpoint.enabled=true"),
        ("engine.gpu_memory_utilization=0.5; engine.num_gpus=0", "engine.num_gpus is 0", "engine.num_gpus=1"),
        ("engine.kv_cache_gib=2; engine.num_gpus=1", "engine.num_gpus is 1", "engine.num_gpus=0"),
        ("words.deck=textarena; words.source=textarena", "words.source is textarena", "words.source=deck"),
        (
            "words.deck=textarena; words.source=w.txt; imitation.enabled=false",
            "no player and no list of words needs cards",
            "imitation.enabled=true",
        ),
        ("engine.max_num_seqs=8; engine.kind=transformers", "engine.kind is transformers", "engine.kind=vllm"),
        (
            "engine.max_num_seqs=8; engine.kind=transformers",
            "engine.kind is transformers",
            "engine.num_engines={min: 1, max: 2}",
        ),
        ("engine.kv_cache_gib=4.0; engine.kind=transformers", "engine.kind is transformers", "engine.kind=vllm"),
        ("cluster.object_store_gib=4.0; cluster.address=auto", "cluster.address is set", "cluster.address=null"),
        (f"self_play.batch_games=64; {STREAM}", "more than stream.games_per_version, 32", "self_play.batch_games=32"),
    ],
)
def test_a_value_without_effect_is_named_with_the_reason_and_only_then(settings: str, why: str, mended: str) -> None:
    (line,) = values_without_effect(config_of(settings))
    assert line.startswith(settings.partition(";")[0].replace("=", ": ")), line
    assert why in line
    assert values_without_effect(config_of(f"{settings}; {mended}")) == []


@pytest.mark.parametrize("export", ["merged", "adapter"])
def test_what_a_run_sets_for_its_adapters_is_named(export: str) -> None:
    (line,) = values_without_effect(config_of(f"engine.max_lora_rank=64; learner.lora={{export: {export}}}"))
    assert line == "engine.max_lora_rank: 64 has no effect, because a run sets it from learner.lora"
    assert values_without_effect(config_of(f"learner.lora={{export: {export}}}")) == []


@pytest.mark.parametrize("key", ["decay=0.5", "role_weights=none", "listening_coeff=0.5", "unsaid_coeff=0.3"])
def test_what_imitation_uses_of_the_objective_is_not_idle_without_rounds(key: str) -> None:
    assert values_without_effect(config_of(f"objective.{key}; self_play.rounds=0")) == []


@pytest.mark.parametrize("baseline", ["mean", "scenario", "moving"])
def test_a_baseline_that_the_weights_of_roles_undo_is_named(baseline: str) -> None:
    both = f"objective.baseline={baseline}; objective.learn_from=both"
    (line,) = values_without_effect(config_of(both))
    assert line == (
        f"objective.baseline: {baseline} is not centred, because objective.role_weights: balanced weighs games by who "
        "won; set role_weights: none"
    )
    (line,) = values_without_effect(config_of(f"{both}; objective.information_gain=0.3"))
    assert "is not centred, nor are gains (objective.information_gain), because" in line
    for mended in ("objective.role_weights=none", "policies=separate", "objective.learn_from=winners"):
        assert values_without_effect(config_of(f"{both}; {mended}")) == []
    kuhn = {**KUHN, "objective": {"baseline": baseline, "learn_from": "both"}}
    (line,) = values_without_effect(parse_config({"games": [TABOO, kuhn], "prompts": "lines"}))
    assert line.startswith(f"objective.baseline: {baseline} of kuhn is not centred")


def test_a_default_without_effect_is_named_too() -> None:
    (line,) = values_without_effect(config_of("imitation.games=5"))
    assert line.startswith("imitation.batch_games: 6")
    assert "more than imitation.games, 5" in line
    assert values_without_effect(config_of("imitation.games=6")) == []


def test_prompts_that_do_not_say_how_often_a_defender_may_guess_are_warned_of(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    chat = Path("configs/prompts/chat.yaml").read_text()
    own.write_text(chat.replace("You have one guess.", "You may guess {max_guesses} times."))

    def warned(prompts: str, max_guesses: int) -> list[str]:
        config = parse_config({"prompts": prompts, "game": {"max_guesses": max_guesses}})
        return [line for line in idle_values(config, {}) if line.startswith("prompts:")]

    assert warned("chat", 1) == warned(str(own), 3) == []
    (line,) = warned("chat", 3)
    assert line.endswith(
        "chat.yaml: the defender's rules do not have {max_guesses}, so they say nothing of game.max_guesses: 3, or "
        "something else; copy the file and write {max_guesses} there"
    )


def scenario_baseline(**changes: Any) -> RunConfig:
    return parse_config({"objective": {"baseline": "scenario"}, **changes})


def test_a_baseline_by_scenario_without_a_scenario_that_comes_twice_is_named() -> None:
    config = scenario_baseline(self_play={"games_per_round": 100})
    (line,) = values_without_effect(config, {"taboo": 100})
    assert line.startswith("objective.baseline: scenario is that of `mean`, because the 100 games of a round have 100 ")
    assert line.endswith("play at least 200 games, or set words.num_train to at most 50")
    assert values_without_effect(config, {"taboo": 50}) == []
    assert values_without_effect(config) == [], "words are not read for a plan"
    stream = scenario_baseline(schedule="stream", self_play={"games_per_round": 320})
    assert len(values_without_effect(stream, {"taboo": 32})) == 1, "a version has 32 games"
    grouped = scenario_baseline(self_play={"games_per_round": 100}, words={"games_per_word": 2})
    assert values_without_effect(grouped, {"taboo": 100}) == [], "each word comes twice in a row"
    (line,) = values_without_effect(
        parse_config({"objective": {"drop_agreeing": True}, "self_play": {"games_per_round": 100}}), {"taboo": 100}
    )
    assert line.startswith("objective.drop_agreeing leaves nothing out, because the 100 games of a round have 100 ")
    (line,) = values_without_effect(scenario_baseline(league={"past_share": 0.5}), {"taboo": 1000})
    assert (
        "of `mean` in games against other players, where a seat plays a scenario once; set words.games_per_word to 4"
        in line
    )
    for size, told in ((2, 1), (4, 0)):
        settings = "objective.advantage=rloo; league.past_share=1; self_play.games_per_round=64"
        lines = values_without_effect(config_of(f"{settings}; words.games_per_word={size}"), {"taboo": 32})
        assert len(lines) == told
        assert all("rloo has nothing to compare a game with in games against other" in line for line in lines)


def test_a_baseline_by_scenario_that_most_scenarios_do_without_is_named() -> None:
    """A group of one has nothing to be compared with: 98 of 99 words come once in 100 games."""
    config = scenario_baseline(self_play={"games_per_round": 100})
    (line,) = values_without_effect(config, {"taboo": 99})
    assert line == (
        "objective.baseline: scenario is that of `mean` for 98 of 99 scenarios, because they come once in the 100 "
        "games of a round; set words.games_per_word to 2 or more, play at least 198 games, or set words.num_train to "
        "at most 50"
    )
    (line,) = values_without_effect(config, {"taboo": 51})
    assert "for 2 of 51 scenarios" in line


def test_cooperative_payoffs_that_pay_nobody_for_helping_are_named() -> None:
    phases = {"phases": [{"rounds": 1}, {"rounds": 1, "payoffs": {"cooperative": True}}]}
    config = parse_config({"game": {"payoffs": {"cooperative": True}}, "self_play": phases})
    why = "has no effect, because a right guess pays the attacker less than a tie, or no end of a game pays it"
    keys = ("game.payoffs.cooperative", "self_play.phases.1.payoffs.cooperative")
    assert values_without_effect(config) == [f"{key}: True {why}" for key in keys]
    several = {"games": [{**TABOO, "payoffs": {"cooperative": True}}, KUHN], "prompts": "lines"}
    assert values_without_effect(parse_config(several)) == [f"games.0.payoffs.cooperative: True {why}"]
    helping = {"cooperative": True, "right_guess": [0.5, 1]}
    assert (
        values_without_effect(parse_config({"game": {"payoffs": helping}, "objective": {"learn_from": "both"}})) == []
    )


@pytest.mark.parametrize(("learn_from", "when"), [("winners", "won"), ("both", "won or lost")])
def test_wrong_guesses_that_cost_nothing_in_some_games_are_named(learn_from: str, when: str) -> None:
    game = {"payoffs": {"early_guess": [0, -0.2]}, "max_guesses": 2}
    (line,) = values_without_effect(parse_config({"game": game, "objective": {"learn_from": learn_from}}))
    assert line.startswith(f"game.payoffs.early_guess: [0.0, -0.2] reaches the defender only in games that it {when};")
    usual = {"payoffs": {"early_guess": [0.1, 0]}, "max_guesses": 2}
    assert values_without_effect(parse_config({"game": usual, "objective": {"learn_from": learn_from}})) == []


def test_an_order_by_progress_that_ends_within_its_first_pass_is_named() -> None:
    settings = {"words": {"order": "progress", "games_per_word": 4}, "self_play": {"rounds": 4, "games_per_round": 64}}
    config = parse_config(settings)
    (line,) = values_without_effect(config, {"taboo": 64})
    assert line.startswith("words.order: progress has no effect, because all rounds give out 64 of the 64 scenarios of")
    assert values_without_effect(config, {"taboo": 63}) == []


def test_a_listener_that_no_round_pays_for_is_named() -> None:
    def lines(*gains: float) -> list[str]:
        phases = [{"rounds": 1, "information_gain": gain} for gain in gains]
        settings = {"objective": {"information_gain": 0.5}, "self_play": {"rounds": 2, "phases": phases}}
        return values_without_effect(parse_config(settings))

    (line,) = lines(0, 0)
    assert line.startswith("objective.information_gain: 0.5 has no effect but the cost of its listener")
    assert lines(0) == lines(0, 1) == []


def test_of_several_games_a_key_counts_if_any_of_them_uses_it() -> None:
    shared = {"games": [TABOO, KUHN], "prompts": "lines"}
    used = parse_config({**shared, "objective": {"listening_coeff": 1.0, "listening_turns": "last"}})
    assert values_without_effect(used) == [], "only Taboo has this term"
    (line,) = values_without_effect(parse_config({**shared, "objective": {"loser_turns": "deciding"}}))
    assert line.startswith("objective.loser_turns")
    own = [TABOO, {**KUHN, "objective": {"loser_turns": "deciding"}}]
    (line,) = values_without_effect(parse_config({**shared, "games": own}))
    assert line.startswith("games.1.objective.loser_turns: deciding has no effect")
    kuhn = {**shared, "games": [TABOO, {**KUHN, "objective": {"baseline": "scenario"}}]}
    (line,) = values_without_effect(parse_config(kuhn), {"taboo": 300, "kuhn": 200})
    assert "scenario of kuhn is that of `mean`, because the 112 games" in line
    assert values_without_effect(parse_config(kuhn), {"taboo": 300, "kuhn": 6}) == []


def test_a_run_that_would_train_nothing_is_refused(tmp_path: Path) -> None:
    nothing = {"self_play": {"rounds": 0}, "imitation": {"enabled": False}}
    with pytest.raises(ConfigError, match="there is nothing to train; set one of them"):
        check_files(parse_config(nothing))
    options = ["-o", "self_play.rounds=0", "-o", "imitation.enabled=false"]
    result = CliRunner().invoke(app, ["train", "quickstart", "--dry-run", *options])
    assert isinstance(result.exception, ConfigError)


def test_a_plan_and_doctor_print_the_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "quickstart", "--dry-run", "-o", "objective.constant_length=9"])
    assert result.output.startswith("warning: objective.constant_length: 9 has no effect, because")
    said = io.StringIO()
    monkeypatch.setattr(doctor, "resolve_model", lambda _: (_ for _ in ()).throw(ConfigError("no model")))
    config = load_config("quickstart", ["objective.constant_length=9", "cluster.object_store_gib=9000"])
    doctor.run_doctor(config, tmp_path / "run", Console(file=said, width=200))
    assert "warn  settings      objective.constant_length: 9 has no effect" in said.getvalue()


@pytest.mark.parametrize(
    ("games", "batch", "told"), [(120, 6, None), (114, 6, "are 19"), (120, 128, "is 1 learner step")]
)
def test_an_imitation_of_fewer_than_20_steps_is_warned_of_in_the_plan_and_before_the_start(
    games: int, batch: int, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config("quickstart", [f"imitation.games={games}", f"imitation.batch_games={batch}"])
    warning = few_imitation_steps(config)
    assert (warning is None) == (told is None)
    assert (told or "") in (warning or "")
    assert [line for line in idle_values(config, {"taboo": ["river"]}) if "fewer than 20" in line] == [warning] * (
        told is not None
    )
    print_plan(config)
    assert ("fewer than 20" in capsys.readouterr().out) == (told is not None)
    for other in ({"enabled": False}, {"source": "games.json"}):
        settings = {"games": games, "batch_games": batch, **other}
        assert few_imitation_steps(parse_config({"imitation": settings})) is None


def test_rows_beside_scripted_games_are_no_few_steps() -> None:
    """Nobody has counted them."""
    config = parse_config({"imitation": {"games": 120, "batch_games": 128, "sft_file": "alpaca.json"}})
    assert few_imitation_steps(config) is None
    assert not [line for line in values_without_effect(config) if "batch_games" in line]
    schedule = make_plan(config).schedule
    assert (schedule.imitation_games, schedule.imitation_steps) == (120, None)
    assert "440 scripted games and the rows of alpaca.json, 8 a step" in "\n".join(
        plan_lines(make_plan(load_config("quickstart", ["imitation.sft_file=alpaca.json"])))
    )


def test_a_start_says_them_before_anything_is_placed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class PlacedError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise PlacedError

    monkeypatch.setattr(
        train, "prepare", lambda *_, **__: Prepared("model", {"taboo": ["river"]}, {"taboo": ["piano"]}, {})
    )
    monkeypatch.setattr(train, "ray_session", stop)
    said = io.StringIO()
    with pytest.raises(PlacedError):
        train.run_training(
            load_config("quickstart", ["objective.constant_length=9"]), tmp_path / "run", Console(file=said, width=300)
        )
    assert [line for line in said.getvalue().splitlines() if "constant_length" in line] == [
        "warning: objective.constant_length: 9 has no effect, because objective.length_norm is mean"
    ]
