"""The soak of a long run's processes (benchmarks/soak.py), on a few games."""

from pathlib import Path

import pytest

from benchmarks import soak
from cluster.runtime.ray_session import ray_session
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import load_config
from spag_ray.config.parts import ClusterConfig


@pytest.mark.parallel
@pytest.mark.parametrize("part", ["small", "played"])
def test_each_part_of_the_soak_plays_its_games_and_is_reported(tmp_path: Path, part: str) -> None:
    run, games = {"small": (soak.run_small, 2000), "played": (soak.run_played, 1000)}[part]
    with ray_session(ClusterConfig(object_store_gib=0.2)):
        folder = make_run_folder(tmp_path / part, load_config("quickstart", soak.SETTINGS))
        curves, found = run(folder, games)
        page = soak.report(folder)
    assert found["games"] == games
    assert {"run", "buffer"} <= curves.keys()
    assert all(map(len, curves.values()))
    assert page["page_mb"] > 1
