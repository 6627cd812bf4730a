"""What is no model is refused with what it lacks; converting the demonstration model is in integration/."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from actors.lm_eval_model import sampling_of
from actors.models import load_tokenizer, resolve_model
from actors.transformers_policy import TransformersPolicy
from spag_ray.errors import ModelError
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template


def test_a_folder_that_is_no_model_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelError, match="no such model folder"):
        resolve_model(str(tmp_path / "absent"))
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelError, match=r"a file, and a model is a folder; [^;]*$"):
        resolve_model(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_no_engine_plays_weights_that_are_not_whole(is_cut_off: bool, tiny_model: Path, tmp_path: Path) -> None:
    """transformers would draw what is missing at random."""
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    if is_cut_off:
        file.write_bytes(file.read_bytes()[:-100])
    else:
        weights = load_file(file)
        del weights["model.norm.weight"]
        save_file(weights, file, metadata={"format": "pt"})
    reason = "incomplete metadata" if is_cut_off else "1 missing keys, such as model.norm.weight"
    with pytest.raises(ModelError, match=reason):
        TransformersPolicy(str(tmp_path))


@pytest.mark.parametrize(
    ("generation", "model", "ends"),
    [
        ({"eos_token_id": [2, 9]}, {"eos_token_id": 2}, (2, 9)),
        ({"eos_token_id": 9}, {"eos_token_id": 2}, (9,)),
        ({}, {"eos_token_id": 9}, ()),
        (None, {"eos_token_id": [9, 2]}, (9, 2)),
        (None, {"eos_token_id": None}, ()),
    ],
)
def test_a_tokenizer_knows_the_ends_that_the_models_folder_names(
    generation: dict[str, Any] | None, model: dict[str, Any], ends: tuple[int, ...], tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | model))
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert load_tokenizer(str(folder)).generation_end_ids == ends


@pytest.mark.parametrize("style", ["chat", "flat", "lines"])
def test_a_generation_configs_end_ends_a_reply_and_is_not_copied(style: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    tokenizer = load_tokenizer(str(folder))
    renderer = taboo_renderer(load_template(style), tokenizer, 3)
    assert {2, 9} <= {*renderer.stop_ids}
    assert {2, 9} <= {*renderer.usual_ends}
    said = renderer.reply_ids("big water")
    assert said[-1] == 2, "the tokenizer's own end is what is trained"
    ended = (*said[:-1], 9)
    assert renderer.text_of(ended) == "big water"
    usual, other = (
        Turn.unsampled(Role.ATTACKER, "big water", renderer.prompt([], Role.ATTACKER, "river"), ids, "p")
        for ids in (said, ended)
    )
    heard = Turn(Role.DEFENDER, "what ?", (5,), (5,), (0.0,), "p")
    assert renderer.prompt([other, heard], Role.ATTACKER, "river") == renderer.prompt(
        [usual, heard], Role.ATTACKER, "river"
    )
    assert {2, 9} <= {*sampling_of({"until": ["!"]}, 0, tokenizer)[0].stop_token_ids}


def test_a_damaged_generation_config_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": ')
    with pytest.raises(ModelError, match=r"generation_config\.json: cannot be read as JSON") as caught:
        load_tokenizer(str(folder))
    assert "\n" not in str(caught.value)
