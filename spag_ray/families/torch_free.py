"""What needs no torch: the families' configurations, and tokenizers. A process that runs no model reads its tokenizer
with these alone."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoTokenizer, LlamaConfig

from spag_ray.errors import ModelError, reason_of

__all__ = ["AlibiLlamaConfig", "AutoConfig", "AutoTokenizer", "has_alibi", "read_config", "read_tokenizer", "shape_of"]
# Keys of config.json that say where weights are from, how they were trained, or what ends a text.
_NOT_SHAPE = (
    *("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures"),
    *("initializer_range", "attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)


class AlibiLlamaConfig(LlamaConfig):
    """Llama's keys; those of rotary positions are not used."""

    model_type = "alibi_llama"
    alibi = True  # read by vLLM, and by `has_alibi`


AutoConfig.register(AlibiLlamaConfig.model_type, AlibiLlamaConfig, exist_ok=True)


def read_config(folder: str) -> Any:
    """config.json as transformers reads it. Raises ModelError if it cannot, and for a family that needs code of its
    own."""
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers' checks of config.json raise kinds of their own
        if "trust_remote_code" in str(error):
            raise _needs_own_code(folder, "model") from error
        raise ModelError(f"{folder}: transformers cannot read config.json: {reason_of(error)}") from error


def has_alibi(config: Any) -> bool:
    """Whether a model's attention is biased by distance (ALiBi)."""
    return config.model_type in ("bloom", "mpt") or bool(getattr(config, "alibi", False))


def read_tokenizer(folder: str) -> Any:
    """The folder's tokenizer. Raises ModelError when transformers cannot read it."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises its own kind for a damaged file
        if "trust_remote_code" in str(error):
            raise _needs_own_code(folder, "tokenizer") from error
        raise ModelError(f"{folder}: the tokenizer cannot be read: {reason_of(error)}") from error


def shape_of(folder: str) -> dict[str, Any]:
    """What two models must have in common for one to take the other's weights: config.json by transformers' names,
    which differ from those of files that other versions wrote. Raises ModelError."""
    return {key: value for key, value in read_config(folder).to_dict().items() if key not in _NOT_SHAPE}


def _needs_own_code(folder: str, what: str) -> ModelError:
    """transformers advises to run it."""
    return ModelError(
        f"{folder}: this {what} needs code of its own (auto_map in its configuration), which is never run; give a "
        "model of a family that transformers has (docs/models.md)"
    )
