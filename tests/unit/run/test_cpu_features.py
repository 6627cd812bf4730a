"""The default dtype of engines and learners is one that this machine multiplies fast."""

from pathlib import Path

import pytest
import torch

from cluster.runtime.run_folder import make_run_folder, reopen_run_folder, with_kept_dtypes
from spag_ray.config.loading import parse_config, to_yaml
from spag_ray.config.no_effect import slow_dtypes
from spag_ray.errors import RunFolderError
from spag_ray.host import cpu_features
from spag_ray.host.cpu_features import fast_dtype, multiplies_bfloat16
from spag_ray.plain_yaml import parse_yaml

OLD = "fma avx avx2 f16c"
NEW = f"{OLD} avx512f avx512dq avx512bw avx512vl"


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that says what this CPU can do."""
    monkeypatch.setattr(cpu_features, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu_features, "multiplies_bfloat16", multiplies_bfloat16.__wrapped__)  # no memory of the last
    return tmp_path / "cpuinfo"


def test_this_cpu_is_judged_as_pytorch_judges_it() -> None:
    assert multiplies_bfloat16() == torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"processor\t: 0\nflags\t\t: fpu {NEW}\nbugs\t\t: none\n", "bfloat16"),
        (f"processor\t: 0\nflags\t\t: fpu {OLD}\nbugs\t\t: none\n", "float32"),
        (f"flags\t\t: {NEW.replace(' avx512bw', '')}\n", "float32"),
        ("processor\t: 0\n", "bfloat16"),
        (None, "bfloat16"),
    ],
    ids=["AVX-512", "AVX2", "a part of AVX-512", "no flags", "no file"],
)
def test_the_default_dtype_is_one_that_the_cpu_multiplies_fast(cpu: Path, text: str | None, found: str) -> None:
    if text is not None:
        cpu.write_text(text)
    assert fast_dtype(on_gpu=False) == found
    config = parse_config({"engine": {}, "learner": {}})
    assert (config.engine.dtype, config.learner.dtype) == (found, found)


def test_on_a_gpu_and_where_it_is_said_the_cpu_does_not_matter(cpu: Path) -> None:
    cpu.write_text(f"flags\t\t: {OLD}\n")
    config = parse_config({"engine": {"num_gpus": 1}, "learner": {"dtype": "bfloat16"}})
    assert (config.engine.dtype, config.learner.dtype) == ("bfloat16", "bfloat16")
    (warning,) = slow_dtypes(config)
    assert warning.startswith("learner.dtype: bfloat16 is several times slower than float32")
    cpu.write_text(f"flags\t\t: {NEW}\n")
    assert slow_dtypes(config) == []


def test_a_run_goes_on_in_its_dtype_on_another_kind_of_cpu(cpu: Path, tmp_path: Path) -> None:
    settings = {"engine": {"max_model_len": 512}, "learner": {"zero_stage": 2}}
    cpu.write_text(f"flags\t\t: {NEW}\n")
    folder = make_run_folder(tmp_path / "run", parse_config(settings))
    cpu.write_text(f"flags\t\t: {OLD}\n")
    here = parse_config(settings)
    assert (here.engine.dtype, here.learner.dtype) == ("float32", "float32")
    kept = with_kept_dtypes(here, folder)
    assert (kept.engine.dtype, kept.learner.dtype) == ("bfloat16", "bfloat16")
    reopen_run_folder(folder, kept)
    said = with_kept_dtypes(parse_config({**settings, "learner": {"zero_stage": 2, "dtype": "float32"}}), folder)
    with pytest.raises(RunFolderError, match=r"learner\.dtype: 'bfloat16', not 'float32'"):
        reopen_run_folder(folder, said)


def test_a_job_chooses_the_dtype_of_its_own_cpu(cpu: Path) -> None:
    cpu.write_text(f"flags\t\t: {OLD}\n")
    config = parse_config({"engine": {}, "learner": {"dtype": "bfloat16"}})
    assert parse_yaml(to_yaml(config), "run")["engine"]["dtype"] == "float32"
    sent = parse_yaml(to_yaml(config, for_elsewhere=True), "job")
    assert "dtype" not in sent["engine"]
    assert sent["learner"]["dtype"] == "bfloat16"
    cpu.write_text(f"flags\t\t: {NEW}\n")
    assert parse_config(sent).engine.dtype == "bfloat16"
