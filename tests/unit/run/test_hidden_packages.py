"""Packages that look absent for the length of an import."""

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from spag_ray.host.hidden_packages import hidden


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
        from spag_ray.host.hidden_packages import hidden
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
