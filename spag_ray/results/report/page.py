"""The report: a run folder as one HTML file; and the same page of a run that goes on, whose server has the data.

The file has no link to anything outside it, and its Content-Security-Policy allows none. It allows only the two scripts
in the page, by their hashes. Data is base64 in elements that browsers do not execute.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import IO, TypeAlias

from markupsafe import Markup

from spag_ray import __version__
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, InputError
from spag_ray.game.rules import Role
from spag_ray.game.turn import after_thought, without_thought
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.host.whole_files import replaced
from spag_ray.results.game_names import cooperative_note, told_apart
from spag_ray.results.report.figure import Figure
from spag_ray.results.report.files import read_files
from spag_ray.results.report.headline import Gathered, headline, notices
from spag_ray.results.report.known_figures import known_figures, known_tables
from spag_ray.results.report.markup import NOTHING, chart, heading, in_words, joined, page, paragraph
from spag_ray.results.report.measurements import Measurements, read_measurements
from spag_ray.results.report.outcome_figures import matrix_figure, outcome_figures, payoff_figure, payoff_table
from spag_ray.results.report.packing import Packer, as_utf8, packed, packed_bytes
from spag_ray.results.report.run_curves import RunCurves
from spag_ray.results.report.sections import (
    about,
    collapse_table,
    evaluation_table,
    incidents,
    match_table,
    rating_table,
    staleness_text,
)
from spag_ray.results.report.solved_figures import solved_figures, solved_table
from spag_ray.results.report.tokens import Aligner, Decode
from spag_ray.results.report.training_figures import LEARNING, MISMATCH, pace_figures, step_figures
from spag_ray.results.report.transcripts import read_transcripts
from spag_ray.results.standings import matrix_of, score

MAX_GAMES = 20_000  # on one page
Draw: TypeAlias = Callable[[Sequence[Figure | None]], Markup]  # figures -> their placeholders
_SCRIPTS = ("base.js", "charts.js", "curves.js", "filters.js", "game.js", "games.js")


@dataclass(frozen=True)
class Report:
    """The file that was written. `num_on_page` of the run's `num_games` games are in it."""

    path: Path
    num_bytes: int
    num_games: int
    num_on_page: int

    def __str__(self) -> str:
        part = "" if self.num_on_page == self.num_games else f"{self.num_on_page:,} of "
        return f"report: {self.path} ({self.num_bytes / 1e6:.1f} MB, {part}{self.num_games:,} games)"


@dataclass(frozen=True)
class Live:
    """What a page says of itself that a server renews. `run`: its place among the runs `names`; `stamp`: which reading
    of the run's folder it is; `differences`: what configures the runs differently."""

    run: int
    stamp: int
    names: Sequence[str]
    differences: Markup = NOTHING


def write_report(folder: Path, out: Path, decode: Decode | None = None, max_games: int = MAX_GAMES) -> Report:
    """Writes the page of a run folder to `out`. An existing file is replaced atomically.

    With `decode` (tokens.py) each token is shaded. Raises RunFolderError if `folder` is not a run folder, InputError if
    it cannot be read, or `out` or the blocks of games, which are kept in a temporary file, cannot be written.
    """
    try:
        with tempfile.TemporaryFile("w+", encoding="ascii") as blocks:
            run = read_run(folder, decode, max_games, lambda name, block: blocks.write(_data(name, block)))
            _write(run, out, blocks)
    except OSError as error:
        told = "files that can be read, and room in the folder of temporary files (TMPDIR)"
        raise InputError(f"{folder}: no report can be made: {error}; it needs {told}") from error
    return Report(out, out.stat().st_size, run.transcripts.num_games, run.packer.num_games)


def _write(run: Gathered, out: Path, blocks: IO[str]) -> None:
    curves = RunCurves(run.files.folder / "metrics.jsonl")
    curves.read()
    text, data = rendered(run)
    data["curve-data"] = packed([{"name": run.files.name, "curves": curves.as_json()}])
    data["plotly"] = packed_bytes(plotly_script().encode())
    head, tail = text.split("<!-- data -->")
    blocks.seek(0)
    try:
        with replaced(out) as file:
            file.write(head)
            for name, each in data.items():
                file.write(_data(name, each))
            shutil.copyfileobj(blocks, file)
            file.write(tail)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}; choose another place with --out") from error


def read_run(folder: Path, decode: Decode | None, max_games: int, put: Callable[[str, str], object]) -> Gathered:
    """Reads a run folder. `put` takes the name and the text of each packed block of games. Raises RunFolderError if
    `folder` is not a run folder."""
    files = read_files(folder)
    max_lag = files.config.stream.max_lag if files.config is not None else -1
    measured = read_measurements(folder / "metrics.jsonl", max_lag)
    numbers = itertools.count()
    packer = Packer(
        files.config,
        Aligner(decode, _public(files.config)) if decode is not None else None,
        lambda block: put(f"block-{next(numbers)}", block),
        files.games,
    )
    several = {each.full_name for each in files.config.games if each.max_guesses > 1} if files.config else set()
    transcripts = read_transcripts(folder / "episodes", packer, max_games, several)
    return Gathered(files.with_games(transcripts.of_games), measured, transcripts, packer, time.time())


def rendered(run: Gathered, live: Live | None = None) -> tuple[str, dict[str, str]]:
    """The page with a mark where its data belongs, and {name: packed data} but for curves and blocks of games."""
    figures: dict[str, Figure] = {}

    def draw(found: Sequence[Figure | None]) -> Markup:
        """The placeholders of figures. Their data is kept for the end of the page."""
        drawn = [figure for figure in found if figure is not None]
        figures.update((figure.name, figure) for figure in drawn)
        return joined(map(chart, drawn))

    script = "" if live else page_script()
    text = page(
        live=live,
        policy=Markup("" if live else _policy(script, plotly_script())),
        title=run.files.name,
        game=run.files.game,
        several=told_apart(run.files.games, "games"),
        style=Markup("" if live else own_file("page.css")),
        script=Markup(script),
        headline=headline(run) + notices(run),
        version=__version__,
        games_note=_games_note(run),
        about=about(run.files),
        **_charts(run, draw),
    )
    index, drawn = run.packer.index(), {name: figure.as_json() for name, figure in figures.items()}
    return as_utf8(text), {"index": packed(index), "figures": packed(drawn)}


def page_script() -> str:
    """The scripts of the page, in the order in which they use each other."""
    return "\n".join(map(own_file, _SCRIPTS))


def own_file(name: str) -> str:
    """A file of the page."""
    return resources.files("spag_ray.results.report").joinpath(name).read_text(encoding="utf-8")


@cache
def plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return source


def _charts(run: Gathered, draw: Draw) -> dict[str, Markup]:
    """{section: its HTML}. A section without data says so; one that no game has is empty."""
    files, measured, game = run.files, run.measured, run.files.game
    league_title = f"The league: {game.seat(Role.ATTACKER)}'s score, by version"
    league = draw([matrix_figure("league", league_title, files.league, {}, game)])
    found: dict[str, Markup] = {}
    together = told_apart(files.games, "All games together")
    for number, (name, own) in enumerate(run.each_game.items()):
        title = told_apart(files.games, own.files.game.name)
        of_game = _of_game(
            name, own, _ended(draw, told_apart(files.games, f"-{number}")), NOTHING if together else league
        )
        for section, text in of_game.items():
            found[section] = found.get(section, NOTHING) + (_headed(title, text) if text else NOTHING)
    if together and league:
        found["standings"] += _headed(together, league)
    return {
        **found,
        "outcomes": (found["outcomes"] or _nothing("No games yet.")) + collapse_table(measured),
        "learning": draw(step_figures(measured, LEARNING, game)) or _nothing(_no_curves(measured)),
        "standings": found["standings"] or _nothing("No matches yet: they come with the first evaluation."),
        "pace": (draw(pace_figures(measured)) or _nothing("Nothing was measured yet."))
        + draw(step_figures(measured, MISMATCH, game)),
        "pace_text": staleness_text(files.config, measured) + incidents(measured),
        "evaluation": evaluation_table(files.evaluations, files.config),
    }


def _headed(title: str, text: Markup) -> Markup:
    return (heading(title) if title else NOTHING) + text


def _of_game(name: str, run: Gathered, draw: Draw, league: Markup) -> dict[str, Markup]:
    """The sections, or their parts, that are of one game."""
    files, measured, game = run.files, run.measured, run.files.game
    met_title = f"{game.title(Role.ATTACKER)}'s score against each {game.seat(Role.DEFENDER)}"
    pairs = dict.fromkeys((match.attacker, match.defender) for match in files.matches if match.games)
    estimates = {pair: score([files.matches], *pair, roles=(Role.ATTACKER,)) for pair in pairs}
    met = draw([matrix_figure("matrix", met_title, matrix_of(files.matches), estimates, game)])
    ranks = rating_table(files.matches, game) if files.matches else NOTHING
    standings = met + league + ranks
    if standings and (note := cooperative_note(files.config)):
        standings = paragraph(note, "note") + standings
    solved = measured.solved.get(name, {})
    alarmed = measured.alarmed(told_apart(files.games, f"{name}: "))
    ended = [*outcome_figures(run.transcripts, alarmed, game), payoff_figure(run.transcripts, game)]
    return {
        "outcomes": draw(ended),
        "payoffs": payoff_table(run.transcripts, game),
        "standings": standings,
        "solved": draw(solved_figures(name, solved)),
        "solved_text": solved_table(name, solved),
        "matches": match_table(files.matches, game) if files.matches else NOTHING,
        "known": draw(known_figures(run.transcripts)) if game.guesses else NOTHING,
        "known_text": known_tables(run.transcripts) if game.guesses else NOTHING,
    }


def _ended(draw: Draw, end: str) -> Draw:
    """Draws the figures of a game: a name, which has this end, is unique on the page."""
    return lambda found: draw([figure and replace(figure, name=f"{figure.name}{end}") for figure in found])


def _games_note(run: Gathered) -> Markup:
    packer, total = run.packer, run.transcripts.num_games
    if not total:
        return _nothing("No games yet.")
    text = NOTHING
    if packer.num_games < total:
        text += paragraph(
            f"{packer.num_games:,} of {in_words(total)} games are on this page: a random sample with the same share of "
            "each stage. The numbers above are computed from all games.",
            "note",
        )
    if not packer.num_shaded:
        text += paragraph("No tokenizer was found that reproduces these texts: turns are shaded as a whole.", "note")
    return text


def _no_curves(measured: Measurements) -> str:
    return f"Too few learner steps for curves: {measured.num_steps}." if measured.num_steps else "No learner steps yet."


def _nothing(text: str) -> Markup:
    return paragraph(text, "missing")


def _policy(*scripts: str) -> str:
    """The Content-Security-Policy: allows these scripts, and no request to anywhere."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}'" for script in scripts
    )
    # plotly.js sets inline styles, and shows a heat map as an image with a data: URL.
    styles = "style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; script-src {hashes}; {styles}; base-uri 'none'; form-action 'none'"


def _data(name: str, text: str) -> str:
    return f'<script type="text/plain" id="{name}">{text}</script>\n'


def _public(config: RunConfig | None) -> Callable[[str], Container[str]]:
    """What of a reply may be its text, by the run's prompt file and by the marks of models that think anyway. A thought
    that was cut leaves nothing."""
    marks = None
    with contextlib.suppress(ConfigError):  # the file is not here any more
        marks = None if config is None else load_template(config.prompts).marks

    def texts(reply: str) -> Container[str]:
        said = after_thought(reply)
        return reply, said, without_thought(marks, reply), without_thought(marks, said), ""

    return texts
