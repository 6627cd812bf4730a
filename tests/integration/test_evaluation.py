"""Tasks of lm-evaluation-harness in whole runs, and the harness's own tasks."""

import io
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console

from actors.lm_eval_tasks import Shelf
from actors.transformers_policy import TransformersPolicy
from cluster.commands.evaluate import run_eval
from cluster.commands.train import run_training
from spag_ray.errors import ConfigError, InputError
from spag_ray.results.evaluations import read_evaluations
from tests.support.evaluation_tasks import model_over, rows_of_the_harness, write_tasks
from tests.support.runs import quiet, records_of, tiny_run


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def model(tiny_model: Path) -> Any:
    return model_over([TransformersPolicy(str(tiny_model), max_model_len=512)], tiny_model)


@pytest.mark.long  # the harness's own tasks are 13,000 files
def test_a_task_of_the_harness_is_found_by_its_name_and_a_wrong_name_by_the_nearest() -> None:
    shelf = Shelf(None)
    with pytest.raises(ConfigError, match=r"unknown task 'arc_esy'; the nearest known one is 'arc_easy'"):
        shelf.load("arc_esy")
    with pytest.raises(InputError, match="task mmlu needs its data set"):
        shelf.load("mmlu")


@pytest.mark.long  # two minutes
@pytest.mark.timeout(400)
def test_a_run_evaluates_every_stage_with_the_engine_it_has_and_the_numbers_are_the_models_own(
    local_ray: None, tiny_model: Path, words: Path, tasks: Path, tmp_path: Path
) -> None:
    names = ["tiny_choices", "tiny_words", "tiny_rolling"]
    evaluation = {"games": 0, "tasks": names, "include_path": str(tasks)}
    config = tiny_run(tiny_model, words, self_play={"rounds": 0}, evaluation=evaluation)
    folder, console = tmp_path / "run", Console(record=True, width=100, file=io.StringIO())
    run_training(config, folder, console)
    rows = read_evaluations(folder / "evaluations.json")
    for stage, model in {"base": tiny_model, "imitated": folder / "models" / "imitated"}.items():
        found = {(row.task, row.metric): row.value for row in rows if row.stage == stage}
        expected = {key: value for key, (value, _) in rows_of_the_harness(model, names, tasks).items()}
        assert found == pytest.approx(expected, rel=1e-4)
    perplexities = [row.value for row in rows if row.task == "tiny_rolling"]
    assert len(rows) == 8, "each stage is another model"
    assert len(set(perplexities)) == 2, "each stage is another model"
    engines = [path.name for path in (folder / "logs").glob("engine-*.log")]
    assert engines == ["engine-policy-0.log"], "no engine is started to evaluate"
    assert [actor for actor in ray.util.list_named_actors() if actor.startswith("evaluation")] == []
    assert len(records_of(folder, "evaluation")) == len(rows)
    text = console.export_text()
    assert f"{perplexities[0]:.1f}" in text
    assert "imitated" in text


@pytest.mark.long  # engines in the place of others
@pytest.mark.timeout(400)
def test_eval_goes_on_when_an_engine_dies_and_writes_the_rows(
    local_ray: None, tiny_model: Path, words: Path, tasks: Path, tmp_path: Path
) -> None:
    engine = {"kind": "transformers", "num_engines": 2, "num_cpus": 0.5}
    evaluation = {"tasks": ["tiny_choices", "spag_reasoning"], "include_path": str(tasks)}
    config = tiny_run(tiny_model, words, engine=engine, evaluation=evaluation)

    def kill_an_engine() -> None:
        while "evaluation-rows.json.run" not in ray.util.list_named_actors():
            time.sleep(0.1)
        ray.kill(ray.get_actor("engine-evaluated-1-rows.json.run"))

    killer = threading.Thread(target=kill_an_engine, daemon=True)
    killer.start()
    run_eval(config, tmp_path / "rows.json", quiet())
    assert not killer.is_alive()
    rows = read_evaluations(tmp_path / "rows.json")
    assert [(row.stage, row.task, row.num_samples) for row in rows] == [
        *[("tiny", "tiny_choices", 24)] * 2,
        *[("tiny", "spag_reasoning", 160)] * 2,
    ]
    found = {(row.task, row.metric): (row.value, row.stderr) for row in rows if row.task == "tiny_choices"}
    assert found == rows_of_the_harness(tiny_model, ["tiny_choices"], tasks)
    with pytest.raises(InputError, match="nothing is overwritten"):
        run_eval(config, tmp_path / "rows.json", quiet())
