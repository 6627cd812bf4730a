"""`train --dry-run`: the plan of every shipped config, and that it is made without starting or importing anything."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.planning.memory import GIB
from cluster.planning.placement import placement_doubt, placement_fault, totals
from cluster.planning.plan import make_plan, plan_faults, plan_lines, plan_notes
from cluster.types import NodeResources
from spag_ray.config.loading import load_config, parse_config
from tests.support.shipped import SHIPPED

GPU_CONFIGS = [path for path in SHIPPED if "gpu" in path.stem]


def nodes_of(name: str) -> list[NodeResources]:
    """Nodes of at most 8 GPUs, as many as the config's name says; without one, 2 CPUs."""
    named = re.search(r"(\d+|two)_?gpu", name)
    if named is None:
        return [NodeResources("here", 2, 0)]
    num_gpus = 2 if named[1] == "two" else int(named[1])
    return [NodeResources(f"node-{index}", 64, min(num_gpus, 8)) for index in range(-(-num_gpus // 8))]


@pytest.mark.parametrize("path", SHIPPED, ids=[path.name for path in SHIPPED])
def test_every_shipped_config_has_a_plan_that_fits_the_machines_it_is_for(path: Path) -> None:
    config = load_config(str(path))
    plan = make_plan(config)
    lines = plan_lines(plan)
    assert max(map(len, lines)) <= 100
    nodes = nodes_of(path.stem)
    assert placement_fault(config, nodes) is None
    assert placement_doubt(config, nodes) is None
    assert totals(plan.actors)[1] == sum(node.num_gpus for node in nodes), "no GPU is left idle"
    for spec in plan.actors:
        assert any(line.split()[:2] == [spec.name, spec.class_name] for line in lines)


@pytest.mark.parametrize("path", GPU_CONFIGS, ids=[path.name for path in GPU_CONFIGS])
def test_the_sums_in_a_gpu_configs_comments_are_those_of_its_plan(path: Path) -> None:
    plan = make_plan(load_config(str(path)))
    assert plan.learner is not None
    assert plan.engine is not None
    assert [*plan_faults(plan), *plan_notes(plan)] == []
    assert plan.schedule.imitation_steps is not None, "imitation has no file"
    assert plan.schedule.imitation_steps == 0 or plan.schedule.imitation_steps >= 50
    text = path.read_text(encoding="utf-8")
    comments = " ".join(line for line in text.splitlines() if line.startswith("#"))
    assert "NOT YET RUN ON A GPU" in comments
    said = {float(number) for number in re.findall(r"\d+\.\d", comments)}
    parts = {part.name: part.num_bytes for part in (*plan.learner.parts, *plan.engine.memory.parts)}
    gradients = sum(num_bytes for name, num_bytes in parts.items() if name.startswith("gradients"))
    for num_bytes in (parts["weights"], gradients, parts["optimiser"], parts["KV cache"], plan.learner.num_bytes):
        assert round(num_bytes / GIB, 1) in said
    assert f"{plan.sequences:,} games of {plan.config.engine.max_model_len:,}" in comments
    asleep = {part.name: part.num_bytes for part in plan.learner.host_parts}.get("asleep, while engines generate")
    if asleep is not None:
        assert f"{asleep / GIB:.0f} GiB" in comments
        assert round(plan.engine.memory.host_bytes / GIB, 1) in said
    if plan.schedule.permits is not None:
        assert f"= {plan.schedule.permits:,} games" in comments
    if "Host:" in comments:
        loading = {part.name: part.num_bytes for part in plan.learner.host_parts}["the model while it loads"]
        assert round(loading / GIB, 1) in said
        assert ("every rank loads the whole model" in comments) == (loading == parts["weights"])


def test_a_dry_run_imports_nothing_slow_and_makes_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; from cluster.cli import app\n"
        "try: app(['train', 'llama2_7b_8gpu', '--dry-run', '--run-dir', 'run'])\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "slow = ('torch', 'vllm', 'deepspeed', 'ray', 'transformers')\n"
        "print('imported:', [name for name in slow if name in sys.modules])"
    )
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "imported: []" in done.stdout
    assert "6,738,415,616 parameters" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_rounds_are_counted_as_they_are_played() -> None:
    self_play = {"rounds": 3, "games_per_round": 50, "batch_games": 16}
    imitation = {"games": 100, "batch_games": 8}
    config = parse_config({"imitation": imitation, "self_play": self_play, "evaluation": {"games": 10}})
    schedule = make_plan(config).schedule
    assert (schedule.imitation_games, schedule.imitation_steps) == (100, 13)
    assert (schedule.games, schedule.steps, schedule.versions) == (150, 12, 4)
    assert schedule.evaluation_games == 10 * (1 + 1 + 3 + 2)
    of_base = parse_config({"self_play": {"rounds": 1}, "evaluation": {"games": 10, "base_games": 4}})
    assert make_plan(of_base).schedule.evaluation_games == 4 + 10 * (1 + 1 + 2)
    two = [{"name": "taboo", "share": 0.5}, {"name": "kuhn", "share": 0.5}]
    of_two = parse_config({"games": two, "self_play": {"rounds": 1}, "evaluation": {"games": 10}})
    assert make_plan(of_two).schedule.evaluation_games == 2 * 10 * (1 + 1 + 1 + 2), "of each game"
    assert schedule.permits is None


def test_payoffs_by_round_are_told_in_one_line(tiny_model: Path) -> None:
    helping = {"right_guess": [1, 1], "cooperative": True}
    self_play = {"rounds": 4, "phases": [{"rounds": 1, "payoffs": helping}, {"rounds": 2, "payoffs": {}}]}
    settings = {"model": str(tiny_model), "objective": {"learn_from": "both"}}
    lines = plan_lines(make_plan(parse_config({**settings, "self_play": self_play})))
    told = "  payoffs     round 1: phase 1, cooperative; rounds 2 to 3: phase 2; round 4: game.payoffs"
    assert [line for line in lines if "payoffs" in line] == [told]
    assert not any("payoffs" in line for line in plan_lines(make_plan(parse_config(settings))))


@pytest.mark.parametrize(
    ("settings", "when"),
    [
        ({"evaluation": {"tasks": ["a"]}, "self_play": {"rounds": 2}}, "each of 4 stages: a"),
        ({"evaluation": {"tasks": ["a"], "task_stages": "ends"}}, "imitation and the last round: a"),
        (
            {"evaluation": {"tasks": ["a"], "task_stages": "ends"}, "imitation": {"enabled": False}},
            "the start and the last round: a",
        ),
    ],
)
def test_the_plan_says_after_which_stages_tasks_come(settings: dict[str, Any], when: str, tiny_model: Path) -> None:
    lines = plan_lines(make_plan(parse_config({"model": str(tiny_model), **settings})))
    assert f"  tasks       after {when}" in lines


def test_games_against_frozen_opponents_are_counted_once() -> None:
    config: dict[str, Any] = {"self_play": {"rounds": 3}, "evaluation": {"games": 10, "against": ["base", "imitated"]}}
    # 5 stages against themselves; 4 meet the base model and 3 the imitated one, in both seats, the last match included.
    assert make_plan(parse_config(config)).schedule.evaluation_games == 10 * 5 + 10 * 2 * (4 + 3)
    config["evaluation"] |= {"against": ["base"], "against_games": 4}
    assert make_plan(parse_config(config)).schedule.evaluation_games == 10 * (5 + 2) + 4 * 2 * 4


def test_a_streams_versions_steps_and_permits() -> None:
    stream: dict[str, Any] = {"games_per_version": 32, "max_lag": 2}
    config = {"schedule": "stream", "self_play": {"rounds": 2, "games_per_round": 64, "batch_games": 16}}
    schedule = make_plan(parse_config({**config, "stream": stream, "imitation": {"enabled": False}})).schedule
    assert (schedule.versions, schedule.steps, schedule.permits, schedule.games) == (4, 8, 96, 128)
    again = make_plan(parse_config({**config, "stream": {**stream, "reuse": 2}})).schedule
    assert (again.games, again.permits) == (64, 48)


def test_checkpoints_count_one_more_than_are_kept_and_both_policies(tiny_model: Path) -> None:
    config = {"model": str(tiny_model), "checkpoint": {"keep_last": 2}, "policies": "separate"}
    config["learner"] = {"dtype": "bfloat16"}
    plan = make_plan(parse_config(config))
    assert plan.size is not None
    assert plan.disk[0].num_bytes == 2 * 3 * 14 * plan.size.num_parameters
    one_gib = 2 * 14 * plan.size.num_parameters / 2**30
    budget = make_plan(parse_config({**config, "checkpoint": {"keep_last": 10, "max_gib": 3.5 * one_gib}}))
    assert budget.disk[0].num_bytes == 2 * 4 * 14 * plan.size.num_parameters, "three fit, and one is being written"
    small = make_plan(parse_config({**config, "checkpoint": {"max_gib": 1e-4}}))
    assert any("checkpoint.max_gib" in fault for fault in plan_faults(small))


def test_a_league_of_adapters_has_one_more_engine_and_small_folders(tiny_model: Path) -> None:
    league = {"past_share": 0.3, "num_opponents": 4}
    lora = {"lora": {"rank": 8, "export": "adapter"}}
    plan = make_plan(parse_config({"model": str(tiny_model), "learner": lora, "league": league}))
    assert [(spec.name, spec.count) for spec in plan.actors if "past" in spec.name] == [("engine-policy-past", 1)]
    assert any("with 4 opponents as adapters" in line for line in plan_lines(plan))
    assert plan.size is not None
    kept = {part.name: part.num_bytes for part in plan.disk}["league"]
    assert 0 < kept < 8 * 2 * plan.size.num_parameters
    whole = make_plan(parse_config({"model": str(tiny_model), "league": {"past_share": 0.3, "num_engines": 4}}))
    assert [(spec.name, spec.count) for spec in whole.actors if "past" in spec.name] == [("engine-policy-past", 4)]
    assert whole.past_engine is None


def test_a_model_that_nobody_knows_is_said_to_be_unknown(tmp_path: Path) -> None:
    plan = make_plan(parse_config({"model": str(tmp_path / "absent")}))
    assert plan.size is None
    assert "model_shape" in plan_notes(plan)[0]
    assert plan_lines(plan)


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        (["learner.zero_stage=1", "learner.num_ranks=1"], "a learner rank is estimated"),
        (["engine.gpu_memory_utilization=0.16"], "does not hold one sequence"),
        (["engine.gpu_memory_utilization=0.25"], "engine.max_num_seqs is 64"),
        (["engine.tensor_parallel_size=3"], "32 attention heads"),
        (["learner.zero_stage=3", "learner.num_ranks=1"], "ZeRO-3 divides a model over ranks"),
    ],
)
def test_what_does_not_fit_is_noted(changes: list[str], noted: str) -> None:
    plan = make_plan(load_config("llama2_7b_8gpu", changes))
    assert any(noted in note for note in [*plan_faults(plan), *plan_notes(plan)])


def test_what_shares_a_gpu_is_held_against_its_part_of_it() -> None:
    apart = ["placement=separate", "engine.num_gpus=0.5", "learner.num_gpus=0.5"]
    (note,) = plan_notes(make_plan(load_config("colocated_1gpu", apart)))
    assert note.startswith("engine.gpu_memory_utilization 0.85 is above engine.num_gpus 0.5")
    two = ["policies=separate", "cluster.gpu_gib=39", "learner.max_tokens_per_microbatch=2048"]
    notes = plan_notes(make_plan(load_config("colocated_1gpu", two)))
    assert any("of its GPU's 39, of which it has 0.5: use more ranks" in note for note in notes)
