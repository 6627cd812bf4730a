"""Files at the root say the same as the package."""

from pathlib import Path

import yaml

from spag_ray import __version__

ROOT = Path(__file__).resolve().parents[3]


def test_every_file_names_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_workflow_runs_what_a_contributor_is_told_to_run() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, "it can be executed"
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("venv", "test", "lint", "types", "test-all", "test-long", "chaos", "fuzz", "gpu-check"):
        assert f"\n{target}:" in makefile
        assert target in told
