"""Libraries: packages that look absent while they are imported, threads that wait, folders named like patterns."""

import glob
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import ray

from actors import engine_process
from cluster.runtime.ray_session import set_environment
from spag_ray.config.engine import EngineConfig
from spag_ray.host.libraries import SPINS, hidden, plain_path, set_before_libraries


def test_a_hidden_package_is_absent_in_the_block_and_not_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_extra.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    with hidden("some_extra"):
        assert importlib.util.find_spec("some_extra") is None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("some_extra")
    assert importlib.import_module("some_extra").answer == 42
    with hidden("some_extra"):
        assert importlib.import_module("some_extra").answer == 42, "what is imported stays"


def test_a_tokenizer_is_the_same_without_torch_and_torch_can_be_imported_afterwards(tiny_model: Path) -> None:
    """In a process of its own: transformers looks for torch once."""
    code = """
        import sys
        from spag_ray.host.libraries import hidden
        from actors.models import load_tokenizer
        if sys.argv[2] == "hides":
            with hidden("torch"):
                tokenizer = load_tokenizer(sys.argv[1])
            assert "torch" not in sys.modules
        else:
            tokenizer = load_tokenizer(sys.argv[1])
            assert "torch" in sys.modules
        import torch
        text = "A river, 3 km long... <|im_end|> ü"
        chat = [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]
        ids = tokenizer.encode(text)
        whole = tokenizer.apply_chat_template(chat, tokenize=False) if tokenizer.chat_template else None
        print(ids, whole, tokenizer.decode(ids), tokenizer.all_special_ids, tokenizer.generation_end_ids)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tiny_model)]
    said = [
        subprocess.run([*command, how], capture_output=True, text=True, check=True, timeout=300).stdout
        for how in ("hides", "hides not")
    ]
    assert said[0] == said[1] != ""


@pytest.mark.parametrize(
    ("outside", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "9"}, "9"), ({"OMP_WAIT_POLICY": "passive"}, None)]
)
def test_environment_comes_first(monkeypatch: pytest.MonkeyPatch, outside: dict[str, str], spins: str | None) -> None:
    monkeypatch.setattr(os, "environ", outside.copy())
    set_before_libraries({})
    assert os.environ.get("GOMP_SPINCOUNT") == spins


@pytest.mark.parametrize(("asked", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_engines_and_learners_take_it_and_their_own_env_comes_first(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], spins: str
) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(os, "environ", {})
    set_environment(asked)  # of Ray's actors, both kinds
    assert os.environ["GOMP_SPINCOUNT"] == spins

    class StartedError(Exception):
        pass

    def start(*_: object) -> None:
        raise StartedError(os.environ["GOMP_SPINCOUNT"])

    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(engine_process, "start_engine", start)
    with pytest.raises(StartedError, match=spins):  # of an engine without Ray
        engine_process._open("model", EngineConfig(env=asked), "name")


@pytest.mark.parametrize("name", ["x[1]", "a*b", "what?", "[", "größe [2]"])
def test_a_folder_of_any_name_is_found_by_a_glob(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "weights.pt").write_text("w")
    with plain_path(str(folder)) as path:
        (found,) = glob.glob(f"{path}/*.pt")
        assert Path(found).read_text() == "w"
        (Path(path) / "new").write_text("n")
    assert not Path(path).exists(), "the link is gone"
    assert sorted(each.name for each in folder.iterdir()) == ["new", "weights.pt"]


def test_a_plain_path_stays_as_it_is(tmp_path: Path) -> None:
    with plain_path(str(tmp_path)) as path:
        assert path == str(tmp_path)
