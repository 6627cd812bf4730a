"""The models of a run folder, models/STAGE: written whole or not at all.

with writing(folder / "models" / "spag-2") as partial:         # a hidden folder beside it
    model.save_pretrained(partial)
is_complete(folder / "models" / "spag-2")                      # True from here on
"""

from __future__ import annotations

import contextlib
import glob
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from spag_ray.errors import ModelError, RunFolderError
from spag_ray.host.whole_files import open_as_folder, sync_file, sync_folder

CARD = "README.md"


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """A new folder for the block to write into. When the block ends, its files are on the disk and it is renamed to
    `folder`; a README.md of the folder that it replaces is kept.

    Raises RunFolderError if the block raises ModelError, or the disk fails; then `folder` is as it was, at the latest
    when the next write begins.
    """
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    replaced = partial.with_suffix(".replaced")
    try:
        _settle(folder)
        partial.mkdir(parents=True)
        yield partial
        if (folder / CARD).is_file():
            shutil.copy2(folder / CARD, partial / CARD)
        open_as_folder(partial)
        for path in partial.rglob("*"):
            (sync_folder if path.is_dir() else sync_file)(path)
        sync_folder(partial)
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)  # a crash before this line leaves no folder of this name, and a resume saves it again
        try:
            sync_folder(folder.parent)
        except OSError:
            folder.rename(partial)  # its new name might not last
            raise
    except (OSError, ModelError) as error:
        raise RunFolderError(
            f"{folder}: the trained model could not be written ({error}); correct the cause and continue with "
            "--resume: if the run writes checkpoints, the newest has what was trained"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the next write tries it again
            _settle(folder)


def is_complete(folder: Path) -> bool:
    """Whether a model folder has its configuration, its tokenizer, which is written last, and every file of weights
    that its index names. Former versions wrote into the folder itself, and may have been killed meanwhile."""
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    with contextlib.suppress(FileNotFoundError):
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
    return all((folder / str(name)).is_file() for name in ("config.json", "tokenizer_config.json", *names))


def make_incomplete(folder: Path) -> None:
    """A model that is to be replaced is none from here on."""
    (folder / "config.json").unlink(missing_ok=True)


def saved_models(run_folder: Path) -> list[Path]:
    """The model folders of a run, by name. One that is being written is not among them."""
    found = (run_folder / "models").glob("*")
    return sorted(path for path in found if not path.name.startswith(".") and (path / "config.json").is_file())


def _settle(folder: Path) -> None:
    """Clean up after this write, or an earlier one that was killed. A replaced model gets its name back if no other has
    it; what else is left is removed. Raises OSError, with the replaced model untouched, if it cannot be renamed."""
    for path in folder.parent.glob(glob.escape(f".{folder.name}.") + "*"):
        if path.name.endswith(".replaced") and not folder.exists():
            path.rename(folder)
        elif path.name.endswith((".partial", ".replaced")):
            shutil.rmtree(path, ignore_errors=True)
