"""The parts of a RunConfig that name opponents: in self-play, and on held-out words."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from spag_ray.config.parts import Part

# Stages whose models are opponents of all later stages.
FrozenOpponent = Literal["base", "imitated"]


SCRIPTED = "scripted"


class FixedOpponent(Part):
    """A player that never changes."""

    model: str = Field(
        description="a model folder, `smollm2-135m-instruct`, `scripted`, `scripted:NAME` (a strategy that the game "
        "has), or a server: http://HOST:PORT/v1#MODEL"
    )
    share: float = Field(gt=0, le=1, description="share of the games")

    @property
    def is_served(self) -> bool:
        """Whether it is a chat endpoint."""
        return is_url(self.model)

    @property
    def has_engine(self) -> bool:
        """Whether it is a model that the run loads."""
        return not self.is_served and script_of(self.model) is None

    @model_validator(mode="after")
    def _check(self) -> FixedOpponent:
        if self.is_served and (fault := url_fault(self.model)):
            raise ValueError(fault)
        return self


def script_of(model: str) -> str | None:
    """The strategy of a scripted player, "" for the game's usual one; None for another player.

    >>> script_of("scripted:cfr"), script_of("scripted"), script_of("models/scripted")
    ('cfr', '', None)
    """
    name, _, strategy = model.partition(":")
    return strategy if name == SCRIPTED else None


def is_url(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def url_fault(model: str) -> str | None:
    """What is wrong with the URL of a player on a server, if anything.

    >>> url_fault("http://127.0.0.1:8000/v1#qwen")
    >>> url_fault("http://127.0.0.1:8000/v1")
    "which of the server's models? Write http://HOST:PORT/v1#MODEL, with the name that http://127.0.0.1:8000/v1/models \
lists"
    """
    url, _, served = model.partition("#")
    told = f"Write http://HOST:PORT/v1#MODEL, with the name that {url.rstrip('/')}/models lists"
    return None if served else f"which of the server's models? {told}"


class LeagueConfig(Part):
    """Opponents in self-play; without shares the learner plays only itself."""

    past_share: float = Field(0.0, ge=0, le=1, description="share of games against earlier versions of itself")
    choose: Literal["uniform", "hard", "even", "nash"] = Field(
        "uniform",
        description="earlier versions: any (fictitious self-play, with past_share 1); hard ones more often, or even "
        "ones (PFSP); or as an equilibrium of the game between versions plays them (PSRO)",
    )
    fixed: tuple[FixedOpponent, ...] = Field(
        (), description="players that never change; models have engines of their own"
    )
    num_engines: int = Field(1, ge=1, description="engines for earlier versions; each holds one whole model")
    num_opponents: int | None = Field(
        None,
        ge=1,
        description="earlier versions that play at the same time (num_engines if empty); more than num_engines with "
        "learner.lora.export: adapter, where every one of these engines holds all of them as adapters",
    )
    snapshot_every: int = Field(1, ge=1, description="versions between two that are kept")
    max_snapshots: int = Field(8, ge=1, description="versions kept on disk")

    @property
    def share(self) -> float:
        """Share of games against other opponents than the learner itself."""
        return self.past_share + sum(opponent.share for opponent in self.fixed)

    @property
    def num_past(self) -> int:
        """Earlier versions that play at the same time."""
        if not self.past_share:
            return 0
        return self.num_engines if self.num_opponents is None else self.num_opponents

    @property
    def scripts(self) -> list[str]:
        """The strategies of the scripted players among the opponents."""
        return [script for opponent in self.fixed if (script := script_of(opponent.model)) is not None]

    @model_validator(mode="after")
    def _check(self) -> LeagueConfig:
        if self.share > 1 + 1e-9:
            raise ValueError(f"the shares of past_share and fixed add up to {self.share:g}; they may be 1 at most")
        if self.num_opponents is not None and self.num_opponents > self.max_snapshots:
            raise ValueError(
                f"num_opponents is {self.num_opponents}, but max_snapshots keeps {self.max_snapshots} versions; raise "
                "max_snapshots, or lower num_opponents"
            )
        return self


class EvaluationConfig(Part):
    """What is measured after each stage."""

    games: int = Field(80, ge=0, description="games of each stage on held-out words")
    base_games: int | None = Field(None, ge=1, description="games of the base model (as many as `games` if empty)")
    against: tuple[FrozenOpponent, ...] = Field(
        (), description="`base`, `imitated`: each later stage also plays these, in both seats, on held-out words"
    )
    against_games: int | None = Field(
        None, ge=1, description="games against each of them in each seat (as many as `games` if empty)"
    )
    engines: Literal["auto", "own", "in_turn"] = Field(
        "auto",
        description="what plays an earlier stage: an engine of its `own`, or the run's engines, which take both "
        "players' weights `in_turn` (slower, and no second engine needs memory); `auto`: in_turn where engines and "
        "learner share GPUs",
    )
    temperature: float = Field(1.0, ge=0, description="of both players in games on held-out words; 0 is greedy")
    could_have_known: bool = Field(
        True, description="score how probable the word was to the defender at each of its turns (docs/evaluation.md)"
    )
    tasks: tuple[str, ...] = Field(
        (), description="tasks of lm-evaluation-harness, evaluated after stages; `paper` means the paper's tasks"
    )
    task_stages: Literal["all", "ends"] = Field(
        "all", description="`ends`: evaluate tasks only after the first and the last training stage"
    )
    task_limit: int | None = Field(None, ge=1, description="samples of each task (all if empty)")
    num_fewshot: int | None = Field(None, ge=0, description="examples before a question (the task's own if empty)")
    apply_chat_template: bool = Field(False, description="format questions with the model's chat template")
    include_path: str | None = Field(None, description="a folder with tasks of your own in the harness's YAML format")
    download: bool = Field(False, description="data sets may be fetched from the Hugging Face hub")

    @property
    def num_against_games(self) -> int:
        """Games against each frozen opponent in each seat."""
        return self.games if self.against_games is None else self.against_games

    @model_validator(mode="after")
    def _check(self) -> EvaluationConfig:
        if len(set(self.against)) < len(self.against):
            raise ValueError(f"against names an opponent twice: {', '.join(self.against)}; name each once")
        if self.against and not self.games:
            raise ValueError("against plays on held-out words, but games is 0; set games, or leave against empty")
        return self
