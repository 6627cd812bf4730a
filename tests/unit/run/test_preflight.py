"""What is found wrong before anything is started: words that a defender cannot listen to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.checks.preflight import check_claims, check_files
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError, ModelError


def prompts(folder: Path) -> str:
    """A prompt file whose claim joins no word but "river"."""
    text = "{target_word} {max_turns}"
    data = {
        "style": "flat",
        "wordings": [{"attacker": text, "defender": "{max_turns}"}],
        "instructions": {"attacker": text, "defender": "go"},
        "claim": "it is`{word}`",
    }
    (folder / "prompts.yaml").write_text(json.dumps(data))
    return str(folder / "prompts.yaml")


def joining_model(tiny_model: Path, folder: Path) -> str:
    """The tiny model's tokenizer with a token for "`river"."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model, local_files_only=True)
    tokenizer.add_tokens(["`river"])
    tokenizer.save_pretrained(folder / "model")
    return str(folder / "model")


def test_a_word_that_the_tokenizer_joins_to_its_claim_is_named_in_one_line(tiny_model: Path, tmp_path: Path) -> None:
    model = joining_model(tiny_model, tmp_path)
    config = parse_config({"prompts": prompts(tmp_path), "objective": {"listening_coeff": 0.5}})
    check_claims(config, model, ["tiger", "apple"])
    with pytest.raises(ModelError, match="joins 'river'") as caught:
        check_claims(config, model, ["tiger", "river"])
    assert "\n" not in str(caught.value)
    file = tmp_path / "games.json"
    file.write_text(json.dumps([{"history": [], "target_word": "river", "max_turns": 5}]))
    from_file = config.model_copy(update={"imitation": config.imitation.model_copy(update={"source": str(file)})})
    with pytest.raises(ModelError, match="joins 'river'"):
        check_claims(from_file, model, ["tiger"])


def test_rows_of_training_data_cannot_be_listened_to(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    row = {"query": "q", "target": "t", "reward": 1.0, "weight": 1.0, "role": "attacker"}
    file.write_text(json.dumps([row]))
    settings: dict[str, Any] = {"source": str(file)}
    check_files(parse_config({"imitation": settings, "objective": {"listening_coeff": 0.5}}))
    with pytest.raises(ConfigError, match=r"imitation.listening_coeff: .*rows\.json has rows"):
        check_files(parse_config({"imitation": {**settings, "listening_coeff": 0.5}}))
