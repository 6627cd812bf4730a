"""The files that a model folder's weights are in, as transformers chooses them. No weights are read, but for those
that StoredWeights is asked for, and a sample by `fingerprint`.

    weight_files(Path("/models/llama-2-7b"))     # [.../model-00001-of-00002.safetensors, ...]

Others beside them are not read, such as `consolidated.safetensors`, which has the same weights again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spag_ray.errors import ModelError

_NAMES = ("model.safetensors", "pytorch_model.bin")  # in transformers' order: each whole, or the files of its index
_READ = (  # beside the weights
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"),
)
_PLACES, _AT_A_PLACE = 64, 2**16  # of a file, and bytes there
_POINTER = b"version https://git-lfs.github.com/spec/"


def weight_files(folder: Path) -> list[Path]:
    """Empty if there are no weights. Raises ModelError for files that the index names and that are missing, and for an
    index that cannot be read."""
    for name in _NAMES:
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}.index.json").is_file():
            return _files_of(index)
    return []


class StoredWeights(Mapping[str, Any]):
    """{name: tensor of torch} of a folder's safetensors files; each is mapped from its file and read when used."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = files

    @classmethod
    def of(cls, folder: Path) -> StoredWeights | None:
        """None if the folder has no such files. Raises ModelError for a damaged one."""
        from safetensors import SafetensorError, safe_open

        files: dict[str, Any] = {}
        for path in weight_files(folder):
            if path.suffix != ".safetensors":
                return None
            try:
                file = safe_open(path, framework="pt")
                files |= dict.fromkeys(file.keys(), file)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{path}: not a whole safetensors file: {error}") from error
        return cls(files) if files else None

    def are_those_of(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether these are the weights of a model with parameters of these shapes, no fewer and no more."""
        return self._files.keys() == shapes.keys() and all(
            tuple(self._files[name].get_slice(name).get_shape()) == shape for name, shape in shapes.items()
        )

    def __getitem__(self, name: str) -> Any:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def is_safetensors(folder: Path) -> bool:
    """Whether an engine that runs can load these weights; one that starts reads pytorch_model.bin too."""
    return all(file.suffix == ".safetensors" for file in weight_files(folder))


def check_is_whole(folder: Path) -> None:
    """Raises ModelError for a folder without weights or with a part of them, and for one that has only Git LFS's
    pointers."""
    for name in _READ if (folder / "tokenizer.json").is_file() else (*_READ, "tokenizer.model"):
        if _is_pointer(folder / name):
            raise _not_fetched(folder / name)
    files = weight_files(folder)
    if not files:
        raise ModelError(
            f"{folder}: this model folder has no weights; copy model.safetensors, or the files that "
            "model.safetensors.index.json names, to it"
        )
    for file in files:
        if _is_pointer(file):
            raise _not_fetched(file)


def fingerprint(folder: Path) -> str:
    """16 hex digits that tell these weights from others, also from later ones of the same training: of the files' sizes
    and of 64 places in each. Not of where the folder is. Raises ModelError for a folder without weights."""
    check_is_whole(folder)
    found = hashlib.sha256()
    for file in weight_files(folder):
        size = file.stat().st_size
        found.update(str(size).encode())
        with file.open("rb") as opened:
            for place in range(_PLACES):
                opened.seek(place * size // _PLACES)
                found.update(opened.read(_AT_A_PLACE))
    return found.hexdigest()[:16]


def _files_of(index: Path) -> list[Path]:
    """The shards that an index names."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        files = [index.parent / name for name in sorted(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if _is_pointer(index):
            raise _not_fetched(index) from None
        raise ModelError(f"{index}: not an index of weights ({type(error).__name__}); copy the model again") from error
    if missing := [file.name for file in files if not file.is_file()]:
        raise ModelError(
            f"{index.parent}: {len(missing)} of the {len(files)} files of its weights are missing, such as "
            f"{missing[0]}; copy the model again"
        )
    return files


def _is_pointer(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def _not_fetched(file: Path) -> ModelError:
    return ModelError(
        f"{file} is a pointer of Git LFS, not the file itself: the folder was cloned without it; run `git lfs pull` "
        "there, or copy the model again"
    )
