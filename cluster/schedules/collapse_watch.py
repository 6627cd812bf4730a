"""Detects that a run collapses, and acts on it: self_play.on_collapse.

It reads the results of matches, which are in every checkpoint, and metrics.jsonl. So a resumed run raises the same
alarms.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.monitor.status_board import StatusBoard
from cluster.schedules.held_out import HeldOutMatches
from cluster.tracking.recorder import Recorder
from spag_ray.config.run import RunConfig
from spag_ray.errors import CollapseError
from spag_ray.results.collapse import Change, Entropies, Figure, figures_of, judge, read_learned
from spag_ray.results.game_names import NamesByGame, names_of_all, told_apart
from spag_ray.results.lines import CollapseLine
from spag_ray.results.matches import of_game
from spag_ray.stages import BASE, IMITATED, Stage


@dataclass(eq=False)
class CollapseWatch:
    """The watch of one run. `mix_share`: the share of the next round's games that frozen opponents play."""

    config: RunConfig
    folder: Path
    matches: HeldOutMatches
    recorder: Recorder
    status: StatusBoard
    games: NamesByGame
    mix_share: float = 0.0

    def check(self, stage: Stage) -> None:
        """Judge a stage that has been evaluated, with those before it. Raises CollapseError for a new alarm if the run
        is to stop and has a round left."""
        action = self.config.self_play.on_collapse
        stages = self._stages(stage)
        if action == "off" or not stages:
            return
        learned, said = read_learned(self.folder / "metrics.jsonl")
        history = []
        for each in stages:
            # Imitation trains on an expert's words: its entropy cannot be compared.
            entropies = learned.get(str(each), {}) if each.round else {}
            history.append((str(each), self._figures(str(each), entropies)))
        found = judge(history)
        self.mix_share = self.config.self_play.mix_share if action == "mix" and found.alarms else 0.0
        for change in found.changes:
            line = self._line(stage, change)
            if line not in said:  # by a previous attempt
                self.recorder.record(line)
            self.status.note(self._note(line))
        alarms = [change for change in found.changes if change.is_alarm]
        if alarms and action == "stop" and stage.round < self.config.self_play.rounds:
            raise CollapseError(
                f"{'; '.join(str(self._line(stage, change)) for change in alarms)}; self_play.on_collapse: stop ends "
                "the run here"
            )

    def _figures(self, stage: str, entropies: Entropies) -> dict[str, Figure]:
        """The figures of a stage: of each game, and of the policies, which play all of them."""
        against, found = self.config.evaluation.against, self.matches.results
        figures: dict[str, Figure] = {}
        for game, names in self.games.items():
            which = told_apart(self.games, f"{game}: ")
            own = figures_of(stage, of_game(found, game), against, {}, names)
            figures |= {f"{which}{figure}": value for figure, value in own.items()}
        return figures | figures_of(stage, (), (), entropies, names_of_all(self.games))

    def _stages(self, stage: Stage) -> list[Stage]:
        """The stages that are compared: the one that self-play starts from, and its rounds up to `stage`."""
        first = IMITATED if self.config.imitation.enabled else BASE
        if not stage.round and stage != first:
            return []
        return [first, *map(Stage.of_round, range(1, stage.round + 1))]

    def _line(self, stage: Stage, change: Change) -> CollapseLine:
        low, high, value = (round(number, 4) for number in (change.low, change.high, change.value))
        return CollapseLine(
            stage=str(stage),
            figure=change.figure,
            is_alarm=change.is_alarm,
            value=value,
            low=low,
            high=high,
            before=change.before,
            action=self.config.self_play.on_collapse,
            mix_ratio=self.mix_share,
        )

    def _note(self, line: CollapseLine) -> str:
        text = f"collapse: {line}" if line.is_alarm else str(line)
        if line.action != "mix":
            return text
        return f"{text}; frozen opponents play {line.mix_ratio:.0%} of the next round's games"
