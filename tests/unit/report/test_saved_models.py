"""A model is written whole or not at all, and one that is not whole is not taken for one."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from spag_ray.errors import ModelError, RunFolderError
from spag_ray.results import saved_models as module
from spag_ray.results.saved_models import CARD, is_complete, make_incomplete, saved_models, writing


def write_files(folder: Path, text: str = "new") -> None:
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (folder / name).write_text(text)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_is_not_there_before_it_is_whole(tmp_path: Path) -> None:
    model = tmp_path / "models" / "spag-1"
    with writing(model) as partial:
        write_files(partial)
        assert not model.exists()
        assert saved_models(tmp_path) == []
    assert is_complete(model)
    assert saved_models(tmp_path) == [model]
    assert names_in(model.parent) == ["spag-1"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ModelError("do_sample is not set")])
def test_a_write_that_fails_leaves_the_former_model_and_says_why_in_one_line(error: Exception, tmp_path: Path) -> None:
    model = tmp_path / "spag-1"
    with writing(model) as partial:
        write_files(partial, "former")

    def fail() -> None:
        with writing(model) as partial:
            write_files(partial)
            raise error

    with pytest.raises(RunFolderError, match=r"spag-1: .*(No space left|do_sample).*--resume") as caught:
        fail()
    assert "\n" not in str(caught.value)
    assert (model / "config.json").read_text() == "former"
    assert names_in(tmp_path) == ["spag-1"]


def test_a_killed_write_leaves_nothing_behind_after_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".spag-1.0123abcd.partial").mkdir()
    (tmp_path / ".spag-10.0123abcd.partial").mkdir()
    with writing(tmp_path / "spag-1") as partial:
        write_files(partial)
    assert names_in(tmp_path) == [".spag-10.0123abcd.partial", "spag-1"]


def test_the_files_of_a_replaced_model_go_but_its_readme_stays(tmp_path: Path) -> None:
    model = tmp_path / "spag-1"
    model.mkdir()
    (model / CARD).write_text("my own words")
    (model / "model-00002-of-00002.safetensors").write_text("of another size")
    with writing(model) as partial:
        write_files(partial)
    assert names_in(model) == [CARD, "config.json", "model.safetensors", "tokenizer_config.json"]
    assert (model / CARD).read_text() == "my own words"


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A model that a user has described."""
    model = tmp_path / "models" / "spag-1"
    with writing(model) as partial:
        write_files(partial, "former")
    (model / CARD).write_text("my own words")
    return model


def assert_as_it_was(former: Path) -> None:
    assert names_in(former.parent) == ["spag-1"]
    assert (former / CARD).read_text() == "my own words"
    assert (former / "model.safetensors").read_text() == "former"
    assert is_complete(former)
    assert saved_models(former.parents[1]) == [former]


@pytest.mark.parametrize("error", [OSError(116, "Stale file handle"), KeyboardInterrupt()], ids=["disk", "stop"])
def test_a_former_model_comes_back_if_the_new_one_does_not_get_its_name(
    error: BaseException, former: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def fail(path: Path, target: Path) -> Any:
        if path.suffix == ".partial":
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises((RunFolderError, KeyboardInterrupt)), writing(former) as partial:
        write_files(partial)
    assert_as_it_was(former)


def test_a_former_model_comes_back_if_the_new_name_may_not_last(former: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        if folder == former.parent:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "sync_folder", fail)
    with pytest.raises(RunFolderError, match="Input/output"), writing(former) as partial:
        write_files(partial)
    assert_as_it_was(former)


def test_a_former_model_comes_back_later_if_it_cannot_now(former: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def fail(path: Path, target: Path) -> Any:
        if target == former:
            raise OSError(116, "Stale file handle")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        for _ in range(2):
            with pytest.raises(RunFolderError, match="Stale"), writing(former) as partial:
                write_files(partial)
    with pytest.raises(RunFolderError, match="not written"), writing(former):
        raise ModelError("not written")
    assert_as_it_was(former)


def test_a_kill_between_the_two_renames_loses_neither_the_former_model_nor_its_readme(former: Path) -> None:
    replaced = former.with_name(".spag-1.0123abcd.replaced")
    former.rename(replaced)
    assert not is_complete(former)
    assert saved_models(former.parents[1]) == []
    with pytest.raises(RunFolderError, match="not written"), writing(former):
        raise ModelError("not written")
    assert_as_it_was(former)
    former.rename(replaced)
    with writing(former) as partial:
        write_files(partial)
    assert names_in(former.parent) == ["spag-1"]
    assert (former / CARD).read_text() == "my own words"
    assert (former / "model.safetensors").read_text() == "new"


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_model_that_lacks_a_file_is_not_complete(lacking: str, tmp_path: Path) -> None:
    write_files(tmp_path)
    assert is_complete(tmp_path)
    (tmp_path / lacking).unlink()
    assert not is_complete(tmp_path)


def test_all_files_of_weights_that_the_index_names_have_to_be_there(tmp_path: Path) -> None:
    write_files(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    (tmp_path / "model-1.safetensors").write_text("")
    assert not is_complete(tmp_path)
    (tmp_path / "model-2.safetensors").write_text("")
    assert is_complete(tmp_path)
    for damaged in ('{"weight_map": {"a"', "[]", '{"weight_map": null}', '{"weight_map": {"a": 1}}'):
        index.write_text(damaged)
        assert not is_complete(tmp_path)


def test_a_model_that_is_to_be_replaced_is_no_model_any_more(tmp_path: Path) -> None:
    model = tmp_path / "models" / "spag-1"
    make_incomplete(model)
    with writing(model) as partial:
        write_files(partial)
    make_incomplete(model)
    assert not is_complete(model)
    assert saved_models(tmp_path) == []


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_whoever_may_read_the_folder_may_read_the_weights(umask: int, expected: int, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    before = os.umask(umask)
    try:
        with writing(tmp_path / "spag-1") as partial:
            write_files(partial)
            save_file({"a": torch.zeros(2)}, partial / "model.safetensors")  # safetensors itself makes it 0600
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spag-1").iterdir()}
    assert set(modes.values()) == {expected}, modes
