"""`auto` in a run's learner section -> numbers: the tokens of a micro-batch, and whether gradients are checkpointed.

    config = with_planned_learner(config, model_size(model, config.model_shape))
    config.learner.microbatch_tokens, config.learner.checkpoints_gradients      # 8192, False

On CPUs these are the defaults. On a GPU they are what the memory plan (memory.py) allows, without checkpointing if a
micro-batch is large enough then: checkpointing costs a third more time, a small micro-batch leaves a GPU idle.
"""

from __future__ import annotations

from cluster.planning.memory import GIB, WELL_FILLED, learner_memory
from cluster.planning.model_size import ModelSize
from spag_ray.config.parts import LearnerConfig
from spag_ray.config.run import RunConfig

# A GPU's matrix products are no faster in larger micro-batches, and are less so below ENOUGH_TOKENS.
MOST_TOKENS, ENOUGH_TOKENS = 16384, 4096


def with_planned_learner(config: RunConfig, size: ModelSize | None) -> RunConfig:
    """The configuration with a number in place of every `auto` of the learner; the same if there is
    none. With an unknown size of the model, a micro-batch has the default's tokens and is checkpointed."""
    learner = config.learner
    tokens, checkpointing = learner.max_tokens_per_microbatch, learner.gradient_checkpointing
    if tokens != "auto" and checkpointing != "auto":
        return config
    default: int = LearnerConfig.model_fields["max_tokens_per_microbatch"].default
    on_gpu = learner.num_gpus > 0

    def chosen(num_tokens: int, on: bool) -> RunConfig:
        values = {"max_tokens_per_microbatch": num_tokens, "gradient_checkpointing": on}
        return config.model_copy(update={"learner": learner.model_copy(update=values)})

    sizes = [default] if tokens == "auto" else [tokens]
    if tokens == "auto" and on_gpu and size is not None:
        sizes = [each for each in (MOST_TOKENS, MOST_TOKENS // 2, MOST_TOKENS // 4) if each > default] + sizes
    longest = size.longest_tree if size is not None and learner.packing == "trees" else None
    if tokens == "auto" and longest is not None:
        sizes = [each for each in sizes if each <= longest] or sizes[-1:]
    if checkpointing != "auto":
        options = [(each, checkpointing) for each in sizes]
    elif not on_gpu:
        options = [(each, False) for each in sizes]
    elif size is None:
        options = [(each, True) for each in sizes]
    else:
        # A micro-batch also has to hold the longest sample, or the run would have to leave it out.
        enough = max(ENOUGH_TOKENS, config.engine.max_model_len) if tokens == "auto" else tokens
        options = [(each, False) for each in sizes if each >= enough] + [(each, True) for each in sizes]
    fitting = (option for option in options if size is None or _fits(chosen(*option), size))
    return chosen(*next(fitting, options[-1]))


def _fits(config: RunConfig, size: ModelSize) -> bool:
    room = WELL_FILLED * share_of_gpu(config) * config.cluster.gpu_gib * GIB
    return not config.learner.num_gpus or learner_memory(config, size).num_bytes <= room


def share_of_gpu(config: RunConfig) -> float:
    """What a learner rank has of its GPU: with an engine beside it that stays awake, the part that Ray reserves for it;
    colocated, its part among the policies' learners, which are all awake together."""
    return 1 / len(config.policy_names) if config.placement == "colocated" else min(1.0, config.learner.num_gpus)
