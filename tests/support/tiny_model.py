"""A tiny model made on the spot: 2 layers, a vocabulary of a few dozen words, a chat template."""

from pathlib import Path

TARGETS = ("river", "piano", "tiger", "apple", "castle", "doctor")
_WORDS = [
    "i", "know", "the", "word", "!", "it", "is", "`", "a", ".", ",", "?", "you", "me", "what", "do", "go", "on",
    "like", "in", "of", "and", "to", "water", "music", "stripes", "fruit", "king", "health", "big", "old",
    "small", "red", "green", "long", "fast", "good", "talk", "about", "think", "hint", "more", "where", "when",
    "user", "assistant", "system",
]  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }} {{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant {% endif %}"
)


def make_tiny_model(
    folder: Path,
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
    tie_word_embeddings: bool = True,
    more_words: tuple[str, ...] = (),
) -> Path:
    """A random Llama with a word-level tokenizer, saved as transformers saves models. `more_words` of its
    vocabulary."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = list(dict.fromkeys(["<unk>", "<|start|>", "<|end|>", *_WORDS, *TARGETS, *more_words]))
    raw = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>"))
    raw.normalizer = normalizers.Lowercase()
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", eos_token="<|end|>", additional_special_tokens=["<|start|>"]
    )
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=2,
        tie_word_embeddings=tie_word_embeddings,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_tiny_relative(folder: Path, family: str, seed: int = 0) -> Path:
    """The tiny model with the layers of another family: `mixtral`, `qwen3_moe`, `gpt_neox`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    make_tiny_model(folder, seed)
    (folder / "model.safetensors").unlink()
    llama = AutoConfig.from_pretrained(folder).to_dict()
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    kept = {name: llama[name] for name in (*sizes, "initializer_range", "bos_token_id", "eos_token_id")}
    experts = {"num_key_value_heads": 1, "num_experts_per_tok": 2}
    own = {
        "mixtral": {**experts, "num_local_experts": 4},
        "qwen3_moe": {
            **experts,
            "num_experts": 4,
            "moe_intermediate_size": 64,
            "head_dim": 32,
            "decoder_sparse_step": 1,
        },
        "gpt_neox": {},
    }
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **kept, **own[family], tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
