"""The benchmarks that take a GPU if there is one: where they run, what they skip, what they compute from times."""

import argparse
import os
import random
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from actors.lm_eval_tasks import Shelf
from benchmarks import machine, reasoning_gym_tasks
from benchmarks.learner import QUICK_GAMES, Measured, result_of
from benchmarks.learner_games import games_of, without_listening
from benchmarks.learner_steps import gaps, settings
from benchmarks.learner_ways import GAMES_PER_STEP, Timing, padded_batches
from benchmarks.machine import LOOKS_ONLY, ROOM_GIB, Card, Place, add_arguments, place_of
from benchmarks.stream_restart import whole_versions
from benchmarks.weight_sync import together, why_not
from benchmarks.workers import Worker, forked
from cluster.gpu_check.check import GIB
from cluster.gpu_check.learner_checks import planned_bytes
from learners.utilization import StepCost
from spag_ray.config.parts import LearnerConfig

SMALL, LARGE = Card("a small card", 23.6, 1), Card("a large card", 79.6, 2)


def test_steps_are_measured_in_settings_that_an_h200_has_room_for() -> None:
    for setting in settings():
        config = LearnerConfig(**setting.options, dtype="bfloat16", num_gpus=1.0)
        assert planned_bytes(setting.shape, config) / GIB < 137, (
            f"{setting.name}: of 139.8, and 1 to 2 are the libraries'"
        )


def placed(monkeypatch: pytest.MonkeyPatch, card: Card | None, *options: str) -> Place:
    monkeypatch.setattr(machine, "_card", lambda: card)
    for name, value in {"CUDA_VISIBLE_DEVICES": "0", **LOOKS_ONLY}.items():  # what is set here ends with the test
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return place_of(parser.parse_args(options))


def test_a_benchmark_takes_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SMALL.gib < ROOM_GIB <= LARGE.gib
    assert placed(monkeypatch, None) == Place("cpu", None, None)
    assert placed(monkeypatch, SMALL) == Place("cuda", SMALL, "qwen2.5-0.5b")
    assert placed(monkeypatch, LARGE) == Place("cuda", LARGE, "qwen2.5-1.5b")
    assert placed(monkeypatch, LARGE, "--shape", "qwen2.5-7b").shape == "qwen2.5-7b"


def test_it_hides_the_gpu_from_its_parts_where_it_is_to_use_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    place = placed(monkeypatch, LARGE, "--device", "cpu", "--shape", "tiny")
    assert (place.on_gpu, place.shape) == (False, "tiny")
    assert forked(os.environ.get, "CUDA_VISIBLE_DEVICES") == ""
    assert place.about()["card"] is None


def test_a_gpu_that_was_asked_for_and_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no GPU"):
        placed(monkeypatch, None, "--device", "cuda")


def test_the_line_of_json_names_what_it_was_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    about = placed(monkeypatch, LARGE).about()
    assert about["card"] == {"name": "a large card", "gib": 79.6, "count": 2}
    assert (about["device"], about["model"]) == ("cuda", "qwen2.5-1.5b")
    assert {"torch", "transformers", "ray"} <= about["versions"].keys()
    assert about["cores"] > 0


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def fail(self) -> None:
        raise ValueError("what was wrong")

    def die(self) -> None:
        os._exit(7)


def test_a_part_keeps_its_state_in_a_process_of_its_own() -> None:
    with Worker(Counter, 5) as worker:
        assert [worker.call("add", 1), worker.call("add", 2)] == [6, 8]
        with pytest.raises(RuntimeError, match="ValueError: what was wrong"):
            worker.call("fail")
    began = time.monotonic()
    with Worker(Counter, 0), Worker(Counter, 0):
        pass
    assert time.monotonic() - began < 30, "each ends with its block"
    with Worker(Counter, 0) as worker, pytest.raises(RuntimeError, match="ended with 7"):
        worker.call("die")
    with pytest.raises(RuntimeError, match="TypeError"), Worker(Counter):
        pass


@pytest.mark.parametrize(
    ("channel", "card", "num_engines", "reason"),
    [
        ("object_store", None, 2, ""),
        ("shared_memory", SMALL, 2, ""),
        ("ipc", None, 1, "needs a GPU"),
        ("ipc", SMALL, 1, ""),
        ("ipc", LARGE, 2, "one engine"),
        ("nccl", SMALL, 1, "2, found 1"),
        ("nccl", LARGE, 1, ""),
        ("nccl", LARGE, 2, "3, found 2"),
    ],
)
def test_a_channel_that_cannot_work_is_skipped(channel: str, card: Card | None, num_engines: int, reason: str) -> None:
    found = why_not(channel, Place("cpu" if card is None else "cuda", card, None), num_engines)
    assert (reason in found) if reason else found == ""


def test_engines_start_as_seldom_as_channels_allow() -> None:
    assert together(["object_store"]) == [["object_store"]]
    assert together(["object_store", "ipc"]) == [["object_store", "ipc"]]
    assert together(["object_store", "ipc", "nccl"]) == [["object_store", "ipc"], ["nccl"]]
    assert together(["nccl", "object_store"]) == [["object_store"], ["nccl"]], "whose engines have GPUs of their own"
    assert together(["ipc", "shared_memory"]) == [["ipc"], ["shared_memory"]]


def test_on_a_gpu_most_games_of_the_quick_part_are_scored_as_in_a_run() -> None:
    num_games = QUICK_GAMES["cuda"]
    assert num_games >= 4 * GAMES_PER_STEP
    games = {way: Measured([Timing(1.0, num_games, 4_000, 1_000, 400, 0.5)]) for way in ("published", "ours")}
    assert result_of({"chat": games}, StepCost(100.0, 50.0), matrix_rate=1e6, missing="")["scored_share"] == 0.75


def test_ratios_are_of_seconds_per_game_and_shares_of_what_is_needed() -> None:
    def ways(**seconds: float) -> dict[str, Measured]:
        tokens = {"published": 5_000, "ours": 1_000, "trl": 6_000}
        return {
            way: Measured([Timing(of_way, 2, 4_000, tokens[way], 400, of_way / 2)], peak_gib=1.5)
            for way, of_way in seconds.items()
        }

    cost = StepCost(100.0, 50.0)
    found = {"chat": ways(published=10.0, ours=2.0, trl=12.0), "flat": ways(published=8.0, ours=4.0, trl=4.0)}
    result = result_of(found, cost, matrix_rate=1e6, missing="")
    assert (result["chat_speedup"], result["chat_speedup_of_trl"], result["chat_token_ratio"]) == (5.0, 6.0, 5.0)
    assert (result["flat_speedup"], result["flat_speedup_of_trl"]) == (2.0, 1.0)
    assert result["scored_share"] == 0, "of one step"
    assert result["chat_times_floor"] == pytest.approx(2.0 / 0.12, abs=0.1)
    ours = result["ways"]["chat"]["ours"]
    assert ours == {
        "seconds_per_game": 1.0,
        "seconds_per_step": 2.0,
        "tokens_per_s": 2000.0,
        "computed_tokens_per_s": 500.0,
        "mfu": 0.06,
        "peak_gib": 1.5,
    }
    assert result["busy_share"] == 0.5


def test_where_trl_is_missing_its_row_says_so() -> None:
    one = Measured([Timing(1.0, 1, 10, 10, 5)])
    result = result_of({"chat": {"published": one, "ours": one}}, StepCost(1.0, 1.0), 1e6, "trl is not installed")
    assert result["ways"]["chat"]["trl"] == {"skipped": "trl is not installed"}
    assert "chat_speedup_of_trl" not in result


def test_every_way_trains_on_the_same_rows(tiny_model: Any) -> None:
    games = without_listening(games_of("flat", 2, str(tiny_model)))
    rows = [turn for game in games for turn in game.turns]
    timing = Timing.of(games, 1.0, 0)
    assert timing.num_row_tokens == sum(row.num_tokens for row in rows)
    assert timing.num_targets == sum(len(row.target_ids) for row in rows)
    batches = list(padded_batches(games))
    assert sum(int(batch["mask"].sum()) for batch in batches) == timing.num_row_tokens
    assert sum(int((batch["labels"] >= 0).sum()) for batch in batches) == timing.num_targets


def test_the_longest_waits_of_a_gpu_are_found_in_a_trace() -> None:
    def event(category: str, name: str, start: float, length: float) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length}

    trace = {
        "traceEvents": [
            event("kernel", "second", 3000, 500),
            event("kernel", "first", 1000, 1000),
            event("gpu_memcpy", "beside the first", 1200, 1000),
            event("kernel", "third", 3500, 500),
            event("cpu_op", "a hook", 2100, 1000),
            event("cpu_op", "inside it", 2500, 300),
            event("cpu_op", "earlier", 0, 100),
            {"ph": "M", "name": "process_name"},
        ]
    }
    found = gaps(trace)
    assert (found["operations"], found["ms"], found["busy_share"]) == (4, 3.0, round(2.2 / 3, 3))
    assert found["gaps"] == [{"ms": 0.8, "before": "second", "host": "a hook > inside it"}]
    assert gaps({"traceEvents": []}) == {}


def test_puzzles_are_tasks_that_the_harness_reads(tmp_path: Path) -> None:
    choices = reasoning_gym_tasks.choices_of("7", ["1", "5", "7", "8", "9"], random.Random(1))
    assert len(choices) == reasoning_gym_tasks.NUM_CHOICES
    assert "7" in choices
    text = "Question: 1 + 1 =\nAnswer: 2\n\nQuestion: 3 + 4 =\nAnswer:"
    item = {"kind": "chain_sum", "text": text, "answer": "7", "choices": choices, "place": choices.index("7")}
    reasoning_gym_tasks.write(tmp_path, [item])
    shelf = Shelf(str(tmp_path))
    (choice,) = shelf.load("reasoning_gym_choice").loaded["tasks"].values()
    (exact,) = shelf.load("reasoning_gym_exact").loaded["tasks"].values()
    (doc,) = choice.test_docs()
    assert (choice.doc_to_text(doc), choice.doc_to_choice(doc)) == (text, choices)
    assert choice.doc_to_choice(doc)[choice.doc_to_target(doc)] == "7"
    assert exact.doc_to_target(doc) == "7"
    assert exact.process_results(doc, ["7"])["exact_match"] == 1
    assert exact.process_results(doc, ["8"])["exact_match"] == 0


def test_rates_are_of_the_games_that_were_played_which_make_whole_versions() -> None:
    assert [whole_versions(games) for games in (1, 1000, 1999, 100_000)] == [1000, 1000, 1000, 100_000]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("chat_templates", ["gone.jinja"], "gone.jinja cannot be read"),
        ("deck_difficulty", ["gone.yaml"], "gone.yaml: no such file"),
        ("hearing", ["gone"], "gone/config.yaml: no such file"),
        ("proof", ["run", "--seeds", "x"], "--seeds x: 'x' is no seed"),
    ],
)
def test_a_slip_in_a_command_of_a_page_is_one_line(
    name: str, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    said = capsys.readouterr().err
    assert said.startswith(f"spag-ray: {told}")
    assert said.count("\n") == 1
