"""The files and folders that a configuration names."""

from __future__ import annotations

from pathlib import Path

from spag_ray.config import RunConfig


def named_paths(config: RunConfig) -> dict[str, str]:
    """{key: path} of what a run of this configuration reads; names of what is shipped (`quickstart`, `textarena`, a
    prompt template) are not among them unless there is such a file."""
    named: dict[str, str | None] = {"model": config.model, "self_play.sft_file": config.self_play.sft_file}
    named["evaluation.include_path"] = config.evaluation.include_path if config.evaluation.tasks else None
    named |= {f"league.fixed.{number}.model": fixed.model for number, fixed in enumerate(config.league.fixed)}
    if config.imitation.enabled:
        named["imitation.sft_file"] = config.imitation.sft_file
        named["imitation.source"] = config.imitation.source if config.imitation.source != "scripted" else None
    maybe_shipped = {"words.source": config.words.source, "prompts": config.prompts}
    maybe_shipped["learner.deepspeed"] = config.learner.deepspeed or ""
    if config.render == "varied":
        maybe_shipped["varied_prompts"] = config.varied_prompts
    named |= {key: path for key, path in maybe_shipped.items() if Path(path).is_file()}
    return {key: path for key, path in named.items() if path}
