"""Configuration: every shipped file loads, a wrong key is named with the nearest known one."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cluster.cli import app
from spag_ray.config.loading import check_name, load_config, named_paths, parse_config, to_yaml
from spag_ray.config.parts import Part
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from spag_ray.games.taboo.prompt_file import load_template
from tests.support.settings import config_of
from tests.support.shipped import SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=[path.name for path in SHIPPED])
def test_every_shipped_config_loads_and_its_prompts_too(path: Path) -> None:
    config = load_config(str(path))
    assert load_template(config.prompts).wordings
    assert parse_config(yaml.safe_load(to_yaml(config))) == config


def test_a_shipped_config_is_found_by_name_and_path_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/quickstart.yaml") == load_config("quickstart")


@pytest.mark.parametrize(
    ("override", "nearest"),
    [("self_play.round=1", "self_play.rounds"), ("learner.learning_rte=1", "learning_rate"), ("modle=x", "model")],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(override: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=nearest) as caught:
        load_config("quickstart", [override])
    assert override.split("=")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", ["engine.env={HF_TOKEN: 31337}", "learner.env=[KEY31337]"])
def test_values_of_environment_variables_are_not_repeated_when_they_are_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"(engine|learner)\.env") as caught:
        load_config("quickstart", [bad])
    assert "31337" not in str(caught.value)


def test_overrides_reach_nested_keys_and_keep_the_others() -> None:
    config = load_config("quickstart", ["self_play.rounds=7", "game.rules=published", "learner.dtype=float32"])
    assert (config.self_play.rounds, config.game.rules, config.learner.dtype) == (7, "published", "float32")
    assert config.game.max_turns == load_config("quickstart").game.max_turns


@pytest.mark.parametrize(
    "bad", ["rounds", "=3", "self_play=3", "self_play.rounds=many", "self_play.rounds=-1", "a.b=["]
)
def test_a_bad_override_is_one_line(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [bad])
    assert "\n" not in str(caught.value)


def test_gspo_keeps_its_papers_clip_on_the_side_that_is_not_set() -> None:
    found = parse_config({"objective": {"loss": "gspo", "clip_range_high": 0.0005}}).objective
    assert (found.clip_range, found.clip_range_high) == (3e-4, 0.0005)


def test_off_is_the_word_that_pages_show_and_not_yamls_false(tmp_path: Path) -> None:
    config = load_config("quickstart", ["self_play.on_collapse=off", "learner.compile=off"])
    assert (config.self_play.on_collapse, config.learner.compile) == ("off", "off")
    (tmp_path / "own.yaml").write_text("learner: {compile: on}\n")
    with pytest.raises(ConfigError, match="should be 'off' or 'layers'"):
        load_config(str(tmp_path / "own.yaml"))


@pytest.mark.parametrize(
    ("game", "key"),
    [
        ({"payoffs": {"tie": [-0.1, -0.1]}}, "games.1.payoffs.tie: "),
        ({"objective": {"baseline_std": "batch"}}, "games.1.objective: baseline_std: batch divides"),
        ({"max_guesses": 2, "payoffs": {"early_guess": [0, -0.2]}, "objective": {"advantage": "rloo"}}, "games.1."),
    ],
)
def test_a_fault_of_one_of_several_games_names_its_key(game: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config({"games": [{"name": "kuhn", "share": 0.5}, {"name": "taboo", "share": 0.5, **game}]})
    assert key in str(error.value)
    assert "game." not in str(error.value)


def test_an_override_reaches_below_a_key_that_is_left_empty(tmp_path: Path) -> None:
    written = tmp_path / "config.yaml"
    written.write_text(to_yaml(RunConfig()))
    assert load_config(str(written)).tracking.wandb is None
    found = load_config(str(written), ["tracking.wandb.project=one"]).tracking.wandb
    assert found is not None
    assert found.project == "one"


def test_a_listener_needs_no_turns_of_engines_where_nothing_is_evaluated() -> None:
    shared = ["engine.num_gpus=0.4", "learner.num_gpus=0.2"]
    assert load_config("taught", shared).plays_in_turn
    with pytest.raises(ConfigError, match="its listener has an engine of its own"):
        load_config("taught", [*shared, "evaluation.games=4"])


def test_a_fault_in_an_override_names_the_override_not_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^-o self_play.roundz: unknown key"):
        load_config("quickstart", ["self_play.roundz=1"])
    with pytest.raises(ConfigError, match=r"^-o self_play.rounds: .* \(got 'two'\)"):
        load_config("quickstart", ["self_play.rounds=two"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["self_play={rounds: many}"], "-o self_play: self_play.rounds: should be a whole number (got 'many')"),
        (["game.payoffs.trap=[1]"], "-o game.payoffs.trap: game.payoffs.trap.1: is missing (got [1])"),
        (["sampling.top_k=50"], "-o sampling.top_k: sampling.top_k / sampling.top_p cut the distribution"),
        (["seed=3", "sampling.top_p=0.5"], "-o sampling.top_p: sampling.top_k / sampling.top_p cut"),
        (["evaluation.against=[base, base]"], "-o evaluation.against: evaluation: against names an opponent twice"),
        (["game.breach=x", "seed=2"], "-o game.breach: unknown key 'game.breach'"),
        (
            ["schedule=stream", "self_play.games_per_round=160", "learner.reference=engine"],
            "-o schedule, -o learner.reference: learner.reference: engine takes",
        ),
    ],
)
def test_a_fault_that_overrides_make_blames_them_and_not_the_shipped_file(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", overrides)
    assert str(caught.value).startswith(said)
    assert "quickstart.yaml" not in str(caught.value)


def test_a_fault_of_an_override_is_not_blamed_on_a_file_that_has_another(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("self_play: {rounds: many}\n")
    with pytest.raises(ConfigError, match=r"^-o self_play\.rounds: should be a whole number \(got 'few'\)"):
        load_config(str(path), ["self_play.rounds=few", "self_play.rounds=few"])


def test_a_fault_of_the_file_blames_the_file_whatever_is_overridden(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("self_play: {rounds: many}\nsampling: {top_k: 5}\n")
    for overrides in ([], ["seed=3"], ["sampling={}"]):
        with pytest.raises(ConfigError, match=r"^\S*own\.yaml: self_play\.rounds: should be a whole number"):
            load_config(str(path), overrides)
    with pytest.raises(ConfigError, match=r"^\S*own\.yaml: sampling\.top_k"):
        load_config(str(path), ["self_play.rounds=2"])


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_as_a_config_file_is_a_config_or_a_config_error(text: str) -> None:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    if isinstance(data, dict):
        said = ""
        try:
            parse_config(data)
        except ConfigError as error:
            said = str(error)
        assert "\n" not in said


def test_truncated_sampling_is_refused_for_the_spag_objective_and_the_preset_allows_it() -> None:
    with pytest.raises(ConfigError, match="importance ratio"):
        parse_config({"sampling": {"top_k": 50}})
    published = parse_config({"preset": "published", "sampling": {"max_new_tokens": 32}})
    assert published.sampling.top_k == 50
    assert published.sampling.temperature == 1.2
    assert published.sampling.max_new_tokens == 32
    assert published.objective.loss == "published"
    assert published.game.rules == "published"
    assert published.prompts == "flat"


def test_a_stream_with_a_kl_term_needs_a_reference_of_its_own_and_keeps_a_stages_start() -> None:
    assert config_of(STREAM).keeps_stage_start
    assert not config_of("").keeps_stage_start
    with pytest.raises(ConfigError, match="of a stream, or with objective"):
        config_of(f"{STREAM}; learner.reference=engine")
    for objective in ("objective.kl_coeff=0", "objective.loss=published"):
        assert not config_of(f"{STREAM}; learner.reference=engine; {objective}").keeps_stage_start


MIX, STREAM = "self_play.on_collapse=mix", "schedule=stream; self_play.games_per_round=160"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("imitation.enabled=false; evaluation.against=[imitated]", "nothing is imitated"),
        ("evaluation.against=[base, base]", "names an opponent twice"),
        ("evaluation.against=[base]; evaluation.games=0", "games is 0; set games"),
        ("evaluation.against=[spag-1]", "evaluation.against"),
        ("evaluation.games=0; self_play.on_collapse=warn", "looks at games on held-out words"),
        (MIX, "name them in evaluation.against"),
        (f"{MIX}; evaluation.against=[base]; {STREAM}", "a stream keeps its own"),
        (f"{MIX}; evaluation.against=[base]; self_play.mix_share=0.5; league.past_share=0.6", r"add up to 1\.1"),
    ],
)
def test_frozen_opponents_and_an_alarm_that_could_do_nothing_are_refused(settings: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(settings)


def test_frozen_opponents_play_as_many_games_as_a_stage_unless_told_otherwise() -> None:
    against = {"games": 12, "against": ["base", "imitated"]}
    assert parse_config({"evaluation": against}).evaluation.num_against_games == 12
    assert parse_config({"evaluation": against | {"against_games": 4}}).evaluation.num_against_games == 4
    assert parse_config({}).evaluation.against == ()
    assert parse_config({}).self_play.on_collapse == "off"


HEARD = "objective.information_gain=0.5"
SHARED = "placement=colocated; engine.num_gpus=0.5; learner.num_gpus=0.5"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            f"{HEARD}; objective.listener=imitated; imitation.enabled=false",
            "objective.listener: imitated: nothing is imitated with imitation.enabled: false; use base",
        ),
        (f"{HEARD}; evaluation.engines=in_turn", "set evaluation.engines: own, or information_gain: 0"),
        (f"{HEARD}; {SHARED}", "with evaluation.engines: auto here the run's engines take turns"),
        (
            "objective.information_gain=-0.1; objective.gain_seats=both",
            "information_gain: -0.1 pays attackers for claims that their hints make less probable",
        ),
        ("objective.information_gain=-0.1; objective.gain_event=reply", "it needs gain_event: claim"),
        (f"{HEARD}; self_play.phases=[{{rounds: 1, information_gain: -1}}]", "information_gain: -1 pays attackers"),
        ("objective.information_gain=.nan", "objective.information_gain: should be"),
        (f"{HEARD}; objective.gain_clip=0", "objective.gain_clip: should be greater than 0"),
        (
            f"{HEARD}; objective.gain_event=reply; objective.gain_seats=both",
            "gain_event: reply pays for traps, and gain_seats: both pays who walks into them too",
        ),
        (f"{HEARD}; objective.gain_clip=3", "gain_clip: 3 clips nothing: probabilities"),
        (f"{HEARD}; objective.listener=''", "objective.listener: should have at least 1"),
    ],
)
def test_a_listener_that_is_not_there_or_has_no_engine_is_refused(settings: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_who_listens_is_the_imitated_model_unless_there_is_none_or_another_is_named() -> None:
    heard = config_of(HEARD)
    assert (heard.listener, heard.own_listener) == ("imitated", None)
    assert config_of(f"{HEARD}; imitation.enabled=false").listener == "base"
    folder = config_of(f"{HEARD}; objective.listener=models/other")
    assert (folder.listener, folder.own_listener) == ("models/other", "models/other")
    assert named_paths(folder)["objective.listener"] == "models/other", "it is sent with a job"
    assert "objective.listener" not in named_paths(heard)
    assert config_of("objective.listener=models/other").own_listener is None, "nobody asks it"
    assert not config_of(f"{HEARD}; {SHARED}; evaluation.engines=own").plays_in_turn


def test_defaults_need_no_file() -> None:
    assert RunConfig().objective.loss == "spag"


START = "objective.kl_reference=start"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            f"{START}; objective.loss=published",
            "kl_reference: start is not for the loss `published`; leave it out, or set loss: spag",
        ),
        (
            f"{START}; learner.lora={{rank: 4}}",
            "kl_reference: start compares with saved weights, but learner.lora trains adapters",
        ),
        (
            f"{START}; learner.reference=engine",
            r"the KL term \(of a stream, or with objective.kl_reference: start\) compares with earlier weights",
        ),
        ("objective.kl_reference_every=2", "kl_reference_every moves the reference of kl_reference: start; set"),
        ("objective.kl_reference_average=0.9", "kl_reference_average moves the reference of kl_reference: sta"),
        (
            f"{START}; objective.kl_reference_every=2; objective.kl_reference_average=0.9",
            "both move the reference; leave one out",
        ),
        (f"{START}; objective.kl_reference_every=2; learner.lora={{}}", "saved weights"),
        (
            f"{STREAM}; self_play.last_learning_rate=0.1",
            r"self_play\.last_learning_rate is for schedule: rounds; the learning rate of a",
        ),
    ],
)
def test_a_reference_or_a_learning_rate_that_cannot_be_kept_is_refused(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(settings)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "model.embed_tokens", "gpt_neox.embed_out", "wte"])
@pytest.mark.parametrize("packing", ["trees", "none"])
def test_adapters_of_embeddings_and_of_an_output_layer_are_refused(target: str, packing: str) -> None:
    with pytest.raises(ConfigError, match=f"learner.lora.*targets: {target} is .* take it out") as refused:
        config_of(f"learner.lora={{targets: [q_proj, {target}]}}; learner.packing={packing}")
    assert "\n" not in str(refused.value)
    assert config_of("learner.lora={targets: [q_proj, embed_tokens_proj]}").learner.lora is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "words.games_per_word=4",
            r"self_play.games_per_round \(150\) has to be a multiple of words.games_per_word \(4\).*set it to 152",
        ),
        (
            f"words.games_per_word=5; {STREAM}",
            r"stream.games_per_version \(32\) has to be a multiple of words.games_per_word \(5\).*set it to 35",
        ),
        (
            "words.games_per_word=3; league.past_share=0.5",
            "words.games_per_word is 3, but against other players.*set an even number",
        ),
    ],
)
def test_groups_of_games_about_a_word_that_would_not_be_whole_are_refused(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(settings)
    assert config_of("words.games_per_word=3").words.games_per_word == 3


def test_an_order_by_progress_without_groups_or_in_a_stream_is_refused() -> None:
    groups = "words.order=progress; words.games_per_word=2"
    assert config_of(groups).words.order == "progress"
    with pytest.raises(ConfigError, match=r"words\.games_per_word is 1; set it to 2 or more"):
        config_of("words.order=progress")
    with pytest.raises(ConfigError, match=r"words\.order: progress is for schedule: rounds"):
        config_of(f"{groups}; {STREAM}")


def test_a_refill_of_groups_that_do_not_exist_or_in_a_stream_is_refused() -> None:
    groups = "words.games_per_word=2; objective.drop_agreeing=true"
    asked = f"{groups}; self_play.refill_agreeing=3; self_play.games_per_round=32"
    assert config_of(asked).self_play.refill_agreeing == 3
    for change, message in (
        ("objective.drop_agreeing=false", "set objective.drop_agreeing: true"),
        ("words.games_per_word=1", "words.games_per_word is 1; set it to 2 or more"),
        ("schedule=stream", "refill_agreeing: 3 is for schedule: rounds"),
    ):
        with pytest.raises(ConfigError, match=message):
            config_of(f"{asked}; {change}")


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"baseline_std": "batch"}, "baseline_std: batch divides what is above a baseline.*set baseline: scenario"),
        ({"baseline_std": "batch", "advantage": "rloo"}, "baseline_std: batch is for advantage: spag"),
    ],
)
def test_a_deviation_without_a_baseline_is_refused(objective: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"objective": objective})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("game.max_guesses=2; game.rules=published", "with rules: published the first guess ends a game"),
        ("game.max_guesses=2; preset=published", "with rules: published the first guess ends a game"),
        ("game.max_guesses=4; game.max_turns=3", "a defender has 3 turns and guesses once in each"),
        ("game.max_guesses=0", "greater than or equal to 1"),
        ("game.max_guesses=2; render=varied", "the prompts of render: varied tell of one guess"),
        (
            "game.max_guesses=2; game.payoffs.early_guess=[0, -0.2]; "
            "objective.advantage=rae; objective.learn_from=both; objective.role_weights=none",
            "game.payoffs.early_guess pays single turns, which is for objective.advantage: spag; rae takes",
        ),
        ("game.name=kuhn; game.max_guesses=2; prompts=lines", "game.max_guesses is for the game `taboo`"),
    ],
)
def test_several_guesses_are_refused_where_a_game_has_one(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(settings)


@pytest.mark.parametrize("schedule", ["schedule=rounds", STREAM])
def test_an_average_is_kept_of_adapters_too(schedule: str) -> None:
    assert config_of(f"{schedule}; {START}; objective.kl_reference_average=0.9; learner.lora={{}}").keeps_stage_start


RATES = {
    "sampling.temperature", "self_play.learning_rate", "self_play.last_learning_rate", "self_play.last_kl_coeff",
    "imitation.learning_rate", "imitation.kl_coeff", "objective.kl_coeff", "objective.mismatch_cap",
    "objective.role_weight_cap", "sync.max_probe_gap", "engine.turn_timeout_s", "learner.max_grad_norm",
    "evaluation.temperature",
}  # fmt: skip


def floats_in(fields: Any, prefix: str = "") -> list[str]:
    """The keys of all numbers that are not integers."""
    found = []
    for name, field in fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Part):
            found += floats_in(kind.model_fields, f"{prefix}{name}.")
        elif kind in (float, float | None):
            found.append(prefix + name)
    return found


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_every_number_has_to_be_finite(value: str) -> None:
    keys = floats_in(RunConfig.model_fields)
    assert len(keys) > 40
    assert set(keys) >= RATES
    for key in keys:
        with pytest.raises(ConfigError, match=rf"-o {key}: ") as caught:
            load_config("quickstart", [f"{key}={value}"])
        assert "\n" not in str(caught.value)
    for key in ("game.payoffs.trap=[%s, 1]", "engine.vllm={a: [{b: %s}]}"):
        with pytest.raises(ConfigError, match=r"finite|less than or equal|greater than or equal"):
            load_config("quickstart", [key % value])


def test_a_load_may_take_as_long_as_a_turn_more_where_it_waits_for_turns() -> None:
    adapters = parse_config({"learner": {"lora": {"export": "adapter"}}})
    assert [RunConfig().load_within_s(in_flight) for in_flight in (False, True)] == [900, 300]
    assert adapters.load_within_s(in_flight=True) == 900, "of an adapter that turns still use"


@pytest.mark.parametrize("name", ["../../x y", "", "a/b", "a b", ".hidden", "-o", "x" * 65, "a\nb", "fü"])
def test_a_name_that_cannot_be_one_of_a_folder_is_refused_where_a_run_begins(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^name: .* cannot name the run's folder and its job") as caught:
        check_name(parse_config({"name": name}))
    assert "\n" not in str(caught.value)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"name": name}))
    address, folder = ["--address", "http://127.0.0.1:1"], ["--run-dir", str(tmp_path / "run")]
    for command in (["train", str(file), *folder], ["submit", str(file), *address, *folder], ["doctor", str(file)]):
        error = CliRunner().invoke(app, command).exception
        assert isinstance(error, ConfigError), command
        assert "cannot name the run's folder" in str(error)


def test_names_of_folders_are_taken_and_a_run_that_has_another_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("quickstart", "llama2_7b-8gpu", "v0.2", "7"):
        check_name(parse_config({"name": name}))
    begun: list[str] = []
    monkeypatch.setattr("cluster.commands.train.run_training", lambda config, *_: begun.append(config.name))
    CliRunner().invoke(app, ["train", "quickstart", "-o", "name='an old one'", "--run-dir", "x", "--resume"])
    assert begun == ["an old one"]
