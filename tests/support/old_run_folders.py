"""Run folders that an earlier version made (tests/golden/run_folders, made by its make.py)."""

import shutil
from pathlib import Path

FOLDERS = Path(__file__).resolve().parents[1] / "golden" / "run_folders"


def placed(name: str, folder: Path) -> Path:
    """A copy of a kept folder in a new folder; the model and the words it names lie beside it."""
    here = folder / "golden"
    shutil.copytree(FOLDERS, here)
    config = here / name / "config.yaml"
    config.write_text(config.read_text().replace("/golden/", f"{here}/"))
    for part in ("logs", "models"):  # empty folders are not kept in the repository
        (here / name / part).mkdir(exist_ok=True)
    return here / name
