"""The demonstration model: converted once, into a folder that transformers reads."""

from pathlib import Path

import pytest

from actors.models import BUILT_IN, load_tokenizer, resolve_model

pytestmark = pytest.mark.parallel


def test_the_built_in_model_is_converted_once_and_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPAG_RAY_CACHE", str(tmp_path))
    folder = Path(resolve_model(BUILT_IN))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(BUILT_IN) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [BUILT_IN], "nothing half-written is left beside it"
    assert load_tokenizer(str(folder)).chat_template
    assert capfd.readouterr().out == ""
