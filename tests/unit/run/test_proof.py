"""The proof run trains its seeds with `train --seeds`, then the rivals of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import proof


def test_rivals_follow_once_all_seeds_have_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    ends = {1: "finished", 2: "stopped"}

    def called(arguments: Sequence[str]) -> None:
        calls.append(list(arguments))
        for seed, ended in ends.items():
            folder = tmp_path / "spag" / f"seed-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "ended.json").write_text(json.dumps({"ended": ended}))

    monkeypatch.setattr(proof, "called", called)
    monkeypatch.setattr(proof, "run_rivals", lambda folder, seed, overrides: calls.append((folder, seed)))
    training = ["train", proof.CONFIG, "--seeds", "1-2", "--run-dir", f"{tmp_path}/spag", "--resume", "-o", "name=a"]
    with pytest.raises(SystemExit, match="seed-2: stopped; call this again to continue"):
        proof.run(tmp_path, "1-2", ["name=a"])
    assert calls == [training]
    calls.clear()
    ends[2] = "finished"
    proof.run(tmp_path, "1-2", ["name=a"])
    assert calls == [training, (tmp_path / "seed-1", 1), (tmp_path / "seed-2", 2)]
    assert proof.spag_of(tmp_path / "seed-2") == tmp_path / "spag" / "seed-2"
