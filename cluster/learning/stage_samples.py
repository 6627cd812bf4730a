"""What each stage trains on: samples of judged games, and the settings of a pass over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from cluster.tracking.recorder import Recorder
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.formats import holds_games, read_games, read_samples, read_sft
from spag_ray.errors import InputError
from spag_ray.game.protocol import guesser_of
from spag_ray.game.renderer import Renderer
from spag_ray.games.taboo.decks import says_none_of
from spag_ray.results.lines import SamplesLine
from spag_ray.stages import EXPERT, IMITATED, Stage
from spag_ray.tokens import PUBLISHED_MAX_TOKENS, Tokenizer, text_of
from spag_ray.training_data.game_samples import game_samples, num_dropped
from spag_ray.training_data.imitation import imitation_samples
from spag_ray.training_data.listened_turns import WhenToClaim, listened_turns, with_listening
from spag_ray.training_data.prompt_randomization import load_varied, rerendered
from spag_ray.training_data.replay import episode_from_game, published_samples, sft_games, sft_samples
from spag_ray.training_data.rewards import RoleBaselines, RoleWindow
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.training_data.unsaid_words import heard_words, unsaid_words, with_unsaid_words

_Game: TypeAlias = Mapping[str, Any]  # in the published format


@dataclass(frozen=True)
class TrainingStage:
    """What one stage trains on: one pass over `games` in the given order, `batch_games` per step, and `sft` rows. Games
    with only listening turns are spread over these steps. `one_pass`: the rows are too, each taken once, at most
    `self_play.sft_rows_per_step` in a step, perhaps in more steps than the games need; otherwise
    every step takes the next `self_play.sft_rows_per_step` of endless passes. Of a stream: `part`, how many parts of
    this stage were trained on before this one; `part_steps`, the planned steps of each, which a seat's own policy takes
    with its own games, if it has as many; and `after`, the stage whose weights this one started with (None: the run's
    base model)."""

    stage: Stage
    spec: StageSpec
    games: Sequence[GameSample]
    sft: Sequence[Sample]
    batch_games: int
    one_pass: bool = False
    part: int = 0
    part_steps: int = 0
    after: Stage | None = None


@dataclass
class StageSamples:
    """The samples of one run. `learning`: names of the policies that self-play trains. `renderer`: that of the game in
    which words are guessed, if the run plays one, because only its turns get more than what was said. `held_out`: words
    about which no game of a file is imitated; `note` is told how many were."""

    config: RunConfig
    tokenizer: Tokenizer
    renderer: Renderer
    learning: set[str]
    recorder: Recorder
    held_out: Sequence[str] = ()
    note: Callable[[str], None] = lambda text: None

    def sft(self) -> list[Sample]:
        """The rows that are trained on in self-play stages; none without `self_play.sft_file`."""
        path = self.config.self_play.sft_file
        return sft_samples(read_sft(path), self.renderer) if path else []

    def imitation(self, played: Sequence[Episode] | None) -> TrainingStage:
        """The imitated turns of a stronger player's games, or rows of training data, plus SFT rows.
        `played`: the expert's games, where `imitation.source` is `scripted`."""
        config = self.config.imitation
        games: list[GameSample]
        if played is not None:
            games = self._of_expert(played)
        elif holds_games(config.source):
            own = self.config.game
            games = self._of_expert(
                [
                    episode_from_game(
                        game, number, str(EXPERT), renderer=self.renderer, rules=own.rules, max_guesses=own.max_guesses
                    )
                    for number, game in enumerate(self._without_held_out(read_games(config.source), config.source))
                ]
            )
        else:
            games, rows = published_samples(read_samples(config.source), self.tokenizer)
            games += sft_games(rows)
        if config.sft_file:
            games += sft_games(sft_samples(read_sft(config.sft_file), self.renderer))
            random.Random(self.config.seed).shuffle(games)
        coeff = self.config.imitation_listening_coeff
        spec = StageSpec("imitation", 0, config.learning_rate, config.kl_coeff, coeff)
        return TrainingStage(IMITATED, spec, games, [], config.batch_games)

    def _without_held_out(self, games: Sequence[_Game], source: str) -> list[_Game]:
        """Raises InputError if none is left."""
        is_free = says_none_of(self.held_out)
        left = [game for game in games if is_free(game["target_word"])]
        if not left and games:
            raise InputError(f"{source}: every game in it is about a word that is held out (words.num_held_out)")
        if len(left) < len(games):
            self.note(f"{source}: {len(games) - len(left)} of {len(games)} games are about held-out words: left out")
        return left

    def self_play(
        self,
        stage: Stage,
        episodes: Sequence[Episode],
        what: str,
        sft: Sequence[Sample],
        baselines: Mapping[str, RoleBaselines] | None = None,
        windows: Mapping[str, RoleWindow] | None = None,
        *,
        repeated: Container[int] = (),
    ) -> TrainingStage:
        """The learner's own turns. `baselines`: {game: its moving averages}. `windows`: {game: its wins} of a stream,
        whose versions may have no decided game; any other stage without one raises InputError, which names it
        `what`. `repeated`: numbers of episodes that were trained on before, which these averages count already."""
        config = self.config

        def own(game: RunConfig, episodes: Sequence[Episode]) -> list[GameSample]:
            name, objective = game.game.full_name, game.objective_of(stage)
            games = game_samples(
                episodes,
                objective,
                game.payoffs_of(stage),
                baselines=(baselines or {}).get(name),
                sampled=config.render == "exact",
                learning=self.learning,
                window=None if windows is None else windows[name],
                repeated=repeated,
            )
            return self._with_added(game, games, episodes, objective.listening_coeff, self.learning)

        games = self._of_games(
            self._rendered(episodes), own, what, lambda: windows is not None or self._agree(stage, episodes)
        )
        # The published loss is of the plain softmax at any sampling temperature; the others are of that temperature.
        temperature = config.sampling.temperature
        tempered = config.objective.loss != "published" and temperature > 0
        spec = StageSpec(
            "self_play",
            0,
            config.self_play.learning_rate_of(stage.round),
            kl_coeff=config.self_play.kl_coeff_of(stage.round, config.objective.kl_coeff),
            listening_coeff=config.objective.listening_coeff,
            temperature=temperature if tempered else 1.0,
        )
        return TrainingStage(stage, spec, games, sft, config.self_play.batch_games)

    def num_dropped_groups(self, stage: Stage, episodes: Sequence[Episode]) -> int:
        """How many groups of words.games_per_word games are left out of these, because all of a group paid the same
        (objective.drop_agreeing)."""
        if not self.config.objective.drop_agreeing:
            return 0
        per_word = self.config.words.games_per_word
        return sum(
            num_dropped(own, each.payoffs_of(stage), self.learning) // per_word for each, own in self._by_game(episodes)
        )

    def _agree(self, stage: Stage, episodes: Sequence[Episode]) -> bool:
        """Whether games are left out because all of their scenario paid the same (objective.drop_agreeing)."""
        if not self.config.objective.drop_agreeing:
            return False
        return any(
            game_samples(
                own,
                each.objective_of(stage).model_copy(update={"drop_agreeing": False}),
                each.payoffs_of(stage),
                learning=self.learning,
            )
            for each, own in self._by_game(episodes)
        )

    def _by_game(self, episodes: Sequence[Episode]) -> Iterator[tuple[RunConfig, list[Episode]]]:
        """The configuration of each game, and the episodes of it."""
        for each in self.config.each_game:
            yield each, [episode for episode in episodes if episode.game == each.game.full_name]

    def _of_expert(self, played: Sequence[Episode]) -> list[GameSample]:
        def own(game: RunConfig, episodes: Sequence[Episode]) -> list[GameSample]:
            sides, guesses = game.imitation.learn_from, game.game.max_guesses
            games = imitation_samples(episodes, game.objective, sides, game.imitates_claims, guesses)
            coeff, claiming = game.imitation_listening_coeff, game.imitation_claiming
            return self._with_added(game, games, episodes, coeff, claiming=claiming)

        return self._of_games(self._rendered(played), own, "imitation")

    def _of_games(
        self,
        episodes: Sequence[Episode],
        own: Callable[[RunConfig, Sequence[Episode]], list[GameSample]],
        what: str,
        may_be_empty: Callable[[], bool] = lambda: False,
    ) -> list[GameSample]:
        """The samples that `own` makes of each game's episodes with the configuration of this game, in the order of the
        episodes. Raises InputError if there are none, unless there may be none."""
        found = {each.game.full_name: own(each, of_game) for each, of_game in self._by_game(episodes)}
        order = {episode.episode_id: place for place, episode in enumerate(episodes)}
        games = sorted(chain.from_iterable(found.values()), key=lambda game: order[game.episode_id])
        if not games and not may_be_empty():
            raise nothing_to_learn(what, len(episodes))
        is_shared = self.config.policies == "shared"  # else no learner has two roles to balance (turns_of)
        for name, of_game in found.items():  # a breach has weight 1, whatever its seat's wins have
            trained = [game for game in of_game if game.turns]  # one that only listens has no weight of a role
            weights = {str(game.role): game.weight if is_shared else 1.0 for game in trained if game.role is not None}
            self.recorder.record(SamplesLine(what, name, len(trained), weights))
        return games

    def _rendered(self, played: Sequence[Episode]) -> Sequence[Episode]:
        """The episodes with the prompts that they were played with, or rendered with other prompts."""
        config = self.config
        if config.render == "exact":
            return played
        most = min(PUBLISHED_MAX_TOKENS, config.learner.microbatch_tokens)
        return rerendered(played, load_varied(config.varied_prompts), self.tokenizer, config.seed, most)

    def _with_added(
        self,
        config: RunConfig,
        games: list[GameSample],
        episodes: Sequence[Episode],
        coeff: float,
        learning: set[str] | None = None,
        claiming: float = 1.0,
    ) -> list[GameSample]:
        """The games with the turns of all `episodes` at which the seat that guesses listens, if it does (`coeff`;
        `claiming`: share of the claiming term's weight), and with the words that their turns are trained not to say, if
        that is configured."""
        objective, renderer = config.objective, self.renderer
        longest = min(self.config.engine.max_model_len, self.config.learner.microbatch_tokens)  # of what is added
        if coeff:
            temperature, guesser = config.sampling.temperature or 1.0, guesser_of(renderer.game)
            when = WhenToClaim(objective.claiming_words, temperature, claiming) if objective.claiming_coeff else None
            assert guesser is not None, "checked before the run (check_claims)"
            turns = objective.listening_turns
            heard = listened_turns(
                episodes, renderer.claim_of, turns, max_tokens=longest, learning=learning, when=when, guesser=guesser
            )
            games = with_listening(games, heard)
        if objective.unsaid_coeff:
            read = partial(text_of, self.tokenizer)
            of_attackers = unsaid_words(
                episodes, renderer.spoken, longest, learning, num_private=renderer.num_private, text_of=read
            )
            of_defenders = heard_words(episodes, renderer.claim, longest, learning)
            games = with_unsaid_words(games, of_attackers, of_defenders)
        return games


def nothing_to_learn(what: str, num_games: int) -> InputError:
    return InputError(
        f"{what}: none of {num_games} games was won by either side, or none pays (game.payoffs), or all of a scenario "
        "paid the same (objective.drop_agreeing), so there is nothing to train on; play more games, or begin with "
        "imitation.enabled: true"
    )
