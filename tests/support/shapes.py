"""The shapes of known models, as their config.json has them."""

from spag_ray.config.parts import ModelShape

LLAMA_2_7B = ModelShape(
    vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
)
