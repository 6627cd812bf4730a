"""The command line: arguments -> RunConfig -> one call. A user's error is one line and exit code 2."""

from __future__ import annotations

import contextlib
import datetime
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from cluster.commands.game import app as game_app
from cluster.commands.report import compare, config
from cluster.guarded import run_guarded
from spag_ray import __version__
from spag_ray.config.loading import check_name, load_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, meant
from spag_ray.host.addresses import Form, check_address

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train language models by adversarial self-play: SPAG as one Ray application.",
)
Overrides = Annotated[list[str] | None, typer.Option("-o", help="override a key: -o self_play.rounds=1")]
GameName = Annotated[str | None, typer.Option(help="which one, if the configuration has several games")]
RulesName = Literal["strict", "published"]
Seeds = Annotated[
    str | None,
    typer.Option(
        help="a run for each: 0-3, or 1,2,5; in RUN_DIR/seed-0 ..., with a table at the end. -o may name {seed}"
    ),
]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"spag-ray {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and end")
    ] = False,
) -> None:
    """What comes before a command."""


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped one")],
    override: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="folder of the run (default runs/NAME-DATE)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the run of --run-dir, if there is one")] = False,
    seeds: Seeds = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and start nothing")] = False,
) -> None:
    """Train by imitation, then by rounds of self-play; evaluate with matches on held-out words."""
    overrides = override or []
    by_seed: dict[int, RunConfig] = {}
    if seeds is not None:
        from cluster.commands.seeds import SeedRuns, plan_of_seeds, run_seeds, seeds_of, with_seed

        by_seed = {seed: load_config(config, with_seed(overrides, seed)) for seed in seeds_of(seeds, overrides)}
    settings = next(iter(by_seed.values())) if by_seed else load_config(config, overrides)
    if not (resume and run_dir):
        check_name(settings)
    if dry_run:
        from cluster.planning.plan import print_plan

        can_start = print_plan(settings)
        if by_seed:
            print(plan_of_seeds(list(by_seed), settings, overrides))
        if not can_start:
            raise typer.Exit(2)
        return
    if resume and run_dir is None:
        raise ConfigError("--resume continues the run of a folder; name it with --run-dir")
    folder = run_dir or Path("runs") / f"{settings.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if by_seed:
        run_seeds(SeedRuns(config, tuple(overrides), by_seed, folder, resume, seeds=seeds or ""), _console(_RunConsole))
        return
    from cluster.commands.train import run_training

    run_training(settings, folder, _console(_RunConsole), resume)


@app.command()
def quickstart(
    override: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and start nothing")] = False,
) -> None:
    """Train a small model on this machine, into the next free runs/quickstart folder: `train quickstart`. Where vLLM is
    built for GPUs, on one GPU."""
    from cluster.checks.vllm_build import ON_ONE_GPU, gpu_build
    from cluster.runtime.output_files import free_name

    usual = Path("runs") / "quickstart"
    folder = free_name(usual)
    if folder != usual and not dry_run:
        print(f"Earlier quickstart runs are kept in {usual.parent}/; this one goes to {folder}")
    on_gpu = ON_ONE_GPU if gpu_build() else ()
    train("quickstart", [*on_gpu, *(override or [])], folder, dry_run=dry_run)


@app.command()
def submit(
    config: Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped one")],
    address: Annotated[str, typer.Option(help="the dashboard, for example http://127.0.0.1:8265")],
    run_dir: Annotated[Path, typer.Option(help="folder of the run: an absolute path that every node shares")],
    override: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the run of --run-dir, if there is one")] = False,
    seeds: Seeds = None,
    follow: Annotated[bool, typer.Option("--follow", help="print its output, end with its exit code")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list what would be sent, and send nothing")] = False,
) -> None:
    """Run `train` as a job of a Ray cluster."""
    check_address(address, Form.JOBS, where="--address")
    from cluster.commands.runs import run_submit

    if seeds is not None:
        from cluster.commands.seeds import check_same_for_all, seeds_of

        seeds_of(seeds, override or ())
        check_same_for_all(override or ())
    settings = load_config(config, override or [])
    check_name(settings)
    code = run_submit(
        settings, address, run_dir, _console(), resume=resume, follow=follow, dry_run=dry_run, seeds=seeds
    )
    raise typer.Exit(code)


@app.command()
def runs(address: Annotated[str, typer.Option(help="http://HEAD:8265 (jobs) or ray://HEAD:10001")]) -> None:
    """The runs on a cluster."""
    from cluster.commands.runs import run_runs

    run_runs(address, _console())


@app.command()
def stop(
    run: Annotated[str, typer.Argument(help="the run folder of a job; with ray://, the run's name")],
    address: Annotated[str, typer.Option(help="http://HEAD:8265 (jobs) or ray://HEAD:10001")],
) -> None:
    """Stop a run at a point where nothing is lost."""
    from cluster.commands.runs import run_stop

    run_stop(run, address, _console())


@app.command()
def attach(
    address: Annotated[str, typer.Argument(help="the client port, for example ray://127.0.0.1:10001")],
    run: Annotated[str | None, typer.Option(help="the run's name; not needed if there is only one")] = None,
) -> None:
    """A Python session with a run: status, episodes, metrics, pause, checkpoint, play."""
    check_address(address, Form.SESSION, where="attach")
    from cluster.commands.runs import run_attach

    run_attach(address, run)


@app.command()
def watch(
    targets: Annotated[list[str], typer.Argument(help="a run's folder (with --web, several), or ray://HEAD:10001")],
    run: Annotated[
        str | None, typer.Option(help="with ray://, the run's name; not needed if there is only one")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="print one frame")] = False,
    web: Annotated[bool, typer.Option("--web", help="a page in the browser that renews itself")] = False,
    host: Annotated[str, typer.Option(help="of the page; beyond loopback, it needs --allow-network")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="of the page; 0: any free one")] = 8401,
    allow_network: Annotated[bool, typer.Option("--allow-network", help="others may look, with a token")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="do not open the page")] = False,
) -> None:
    """A live view of a run, or of several on one page; Ctrl-C closes the view, the runs continue."""
    if web:
        from cluster.commands.watch_web import run_watch_web
        from cluster.serve.server import Page

        page = Page(host, port, allow_network, opens_browser=not no_browser)
        run_watch_web(targets, page, run, once, _console())
        return
    if (host, port, allow_network, no_browser) != ("127.0.0.1", 8401, False, False):
        raise ConfigError("--host, --port, --allow-network and --no-browser are of the page: add --web")
    if len(targets) > 1:
        raise ConfigError("several runs are shown on one page: add --web; `spag-ray compare` prints them side by side")
    from cluster.commands.watch import run_watch

    run_watch(targets[0], run, once, _console())


@app.command()
def doctor(
    config: Annotated[str | None, typer.Argument(help="a YAML file, or the name of a shipped one")] = None,
    override: Overrides = None,
    address: Annotated[str | None, typer.Option(help="a running Ray cluster (default: cluster.address)")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="folder that the run will have")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="check this machine's GPUs instead")] = False,
    shape: Annotated[str, typer.Option(help="with --gpu: the random model's shape")] = "qwen2.5-1.5b",
    minutes: Annotated[float, typer.Option(min=0.1, help="with --gpu: run the checks that fit")] = 10.0,
) -> None:
    """Check files, model, nodes and their versions before a run; exit code 2 if a check fails."""
    if gpu:
        from cluster.gpu_check.check import SHAPES
        from cluster.gpu_check.run_checks import run_all

        if shape not in SHAPES:
            told = f"--shape {shape} is not known; there are {', '.join(SHAPES)}"
            raise ConfigError(told + meant(shape, SHAPES))
        raise typer.Exit(2 * run_all(shape, minutes=minutes))
    if config is None:
        raise ConfigError("doctor looks at a configuration: name one (or ask for --gpu)")
    settings = load_config(config, override or [])
    check_name(settings)
    if address is not None:
        check_address(address, Form.CLUSTER, where="--address")
        settings = settings.model_copy(update={"cluster": settings.cluster.model_copy(update={"address": address})})
    from cluster.commands.doctor import run_doctor

    if not run_doctor(settings, run_dir or Path("runs") / settings.name, _console()):
        raise typer.Exit(2)


@app.command()
def play(
    config: Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped one")],
    out: Annotated[Path, typer.Option(help="games in the published JSON format")],
    attacker: Annotated[str | None, typer.Option(help="model folder of the attacker")] = None,
    defender: Annotated[str | None, typer.Option(help="model folder of the defender")] = None,
    words: Annotated[Path | None, typer.Option(help="target words, or scenarios of another game, one a line")] = None,
    game: GameName = None,
    override: Overrides = None,
) -> None:
    """Play one game per word and write the games."""
    settings = load_config(config, override or []).of_game(game)
    from cluster.commands.play import run_play

    run_play(settings, attacker, defender, words_file=words, out=out, console=_console())


@app.command()
def serve(
    target: Annotated[str, typer.Argument(help="a run's folder, a model folder, or `smollm2-135m-instruct`")],
    stage: Annotated[str | None, typer.Option(help="the stage of the run that the page proposes")] = None,
    config: Annotated[
        str | None, typer.Option(help="of a model: configuration with the game and the prompts (default quickstart)")
    ] = None,
    game: Annotated[str | None, typer.Option(help="which one, if the run has several games")] = None,
    words: Annotated[Path | None, typer.Option(help="words or scenarios to give out (default: held-out ones)")] = None,
    keep: Annotated[Path | None, typer.Option(help="folder for games that a person agrees to keep")] = None,
    engine: Annotated[Literal["transformers", "vllm"], typer.Option(help="what plays")] = "transformers",
    host: Annotated[str, typer.Option(help="beyond loopback, it needs --allow-network")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8400,
    allow_network: Annotated[bool, typer.Option("--allow-network", help="others may play, with a token")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="do not open the page")] = False,
    override: Annotated[
        list[str] | None, typer.Option("-o", help="override a key: -o evaluation.temperature=1")
    ] = None,
) -> None:
    """Play against a model on a page in the browser; see docs/serve.md."""
    from cluster.serve.server import Page, ServeWanted, run_serve

    page = Page(host, port, allow_network, opens_browser=not no_browser)
    wanted = ServeWanted(
        target, config, override or (), page, stage=stage, game=game, words=words, keep=keep, engine=engine
    )
    run_serve(wanted, Console())


@app.command("eval")
def evaluate(
    config: Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped one")],
    model: Annotated[str | None, typer.Option(help="model folder (default: the configuration's)")] = None,
    tasks: Annotated[str | None, typer.Option(help="names, separated by commas; `paper`: those of the paper")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="samples of each task")] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="examples before each question")] = None,
    out: Annotated[Path | None, typer.Option(help="file for the rows (default runs/eval-DATE.json)")] = None,
    allow_download: Annotated[bool, typer.Option("--allow-download", help="data sets may come from the hub")] = False,
    override: Overrides = None,
) -> None:
    """Evaluate a model on tasks of lm-evaluation-harness."""
    settings = load_config(config, override or [])
    from cluster.commands.evaluate import run_eval, with_tasks

    settings = with_tasks(settings, model, tasks, limit=limit, num_fewshot=num_fewshot, downloads=allow_download)
    run_eval(settings, out or Path("runs") / f"eval-{datetime.datetime.now():%Y%m%d-%H%M%S}.json", _console())


@app.command()
def match(
    config: Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped one")],
    player: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=MODEL: a model folder, `scripted`, or http://HOST:PORT/v1#MODEL (any chat endpoint); "
            "NAME=MODEL,MODEL: an attacker and a defender"
        ),
    ] = None,
    stages: Annotated[Path | None, typer.Option(help="run folder: its base model and every stage play too")] = None,
    against: Annotated[str | None, typer.Option(help="play only this player's matches, in both seats")] = None,
    games: Annotated[int | None, typer.Option(min=1, help="of each pairing (default evaluation.games)")] = None,
    words: Annotated[Path | None, typer.Option(help="words or scenarios, one a line (default: held-out ones)")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON file, whose matches are kept (default runs/match-DATE.json, or that of --stages)"),
    ] = None,
    override: Overrides = None,
) -> None:
    """Play every attacker against every defender on held-out words; print the standings with confidence intervals."""
    more = [] if games is None else [f"evaluation.games={games}"]
    settings = load_config(config, [*(override or []), *more])
    from cluster.commands.match import MatchWanted, run_match

    run_match(settings, MatchWanted(tuple(player or ()), stages, against, words, out), _console())


@app.command()
def reward(
    games: Annotated[Path, typer.Argument(help="games in the published JSON format")],
    out: Annotated[Path, typer.Argument(help="training data to write")],
    decay: Annotated[float, typer.Option(help="turn t of n gets decay^-t / sum_i decay^-i")] = 0.8,
    rules: Annotated[RulesName, typer.Option(help="the referee")] = "published",
    prompts: Annotated[str, typer.Option(help="a `flat` prompt template, or a file of your own")] = "flat",
    sft: Annotated[Path | None, typer.Option(help="instruction data to add")] = None,
) -> None:
    """Judge games and write the winner's turns with their rewards and weights."""
    from cluster.commands.data import run_reward

    run_reward(games, out, _console(), decay=decay, rules=rules, prompts=prompts, sft=sft)


@app.command()
def learn(
    config: Annotated[str, typer.Argument(help="a YAML file, or the name of a shipped one")],
    method: Annotated[Literal["imitation", "spag"], typer.Option(help="the loss")],
    data: Annotated[Path, typer.Option(help="training data in the published JSON format")],
    out: Annotated[Path, typer.Option(help="model folder to write")],
    override: Overrides = None,
) -> None:
    """Train for one pass over a file of training data."""
    settings = load_config(config, override or [])
    from cluster.commands.learn import run_learn

    run_learn(settings, method, data, out, _console())


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="folder of Baichuan 2, 7B or 13B, as it is published")],
    target: Annotated[Path, typer.Argument(help="model folder to write")],
) -> None:
    """Write a folder of Baichuan 2 as one that needs no code of its own; see docs/appendix/baichuan.md."""
    from spag_ray.families.baichuan import convert as convert_folder

    made = convert_folder(source, target)
    print(f"{target}: {made.model_type}, {made.num_tensors} tensors in {made.num_files} files")


app.command()(config)
app.command()(compare)
app.add_typer(game_app, name="game")
words_app = typer.Typer(invoke_without_command=True)
app.add_typer(words_app, name="words")


@words_app.callback()
def words(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="file to write, one word a line")] = None,
    top: Annotated[int, typer.Option(min=1, help="how many words")] = 50_000,
) -> None:
    """Write a target-word list by frequency: letters only, no stop words. `words check` checks a deck."""
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise ConfigError("--out: name the file of the list; or check a deck: spag-ray words check FILE")
    from cluster.commands.data import run_words

    run_words(out, top, _console())


@words_app.command("check")
def check_words(deck: Annotated[str, typer.Argument(help="a deck's file, or the name of a shipped one")]) -> None:
    """Print every fault of a deck with its line; exit code 2 if there is any. See docs/words.md."""
    from cluster.commands.data import run_words_check

    if not run_words_check(deck, _console()):
        raise typer.Exit(2)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="folder of a run: finished, under way, or ended early")],
    out: Annotated[Path | None, typer.Option(help="HTML file to write (default RUN_DIR/report.html)")] = None,
) -> None:
    """Write one HTML page of a run: charts, standings, every game; see docs/report.md."""
    from cluster.commands.report import make_report

    make_report(run_dir, out, _console())


@app.command()
def export(
    run_dir: Annotated[Path, typer.Argument(help="folder of a run: finished, under way, or ended early")],
    form: Annotated[
        Literal["parquet", "jsonl", "hf"],
        typer.Option("--format", help="hf: a folder for Hugging Face datasets; parquet and hf need the extra \\[data]"),
    ],
    rows: Annotated[Literal["turns", "games"], typer.Option(help="what a row is")] = "turns",
    stage: Annotated[list[str] | None, typer.Option(help="only this stage's games; may be given again")] = None,
    out: Annotated[
        Path | None, typer.Option(help="file or folder to write (default RUN_DIR/turns.parquet ...)")
    ] = None,
) -> None:
    """Write a run's games as rows of tokens, log-probabilities, rewards and verdicts; see docs/data.md."""
    from cluster.commands.data import run_export

    run_export(run_dir, form, rows, stages=stage or (), out=out, console=_console())


@app.command()
def listen(
    model: Annotated[str, typer.Argument(help="a model folder, or `smollm2-135m-instruct`")],
    games: Annotated[Path, typer.Option(help="games in the published JSON format, or a run's episodes/NAME.log")],
    config: Annotated[
        str, typer.Option(help="configuration with the prompts, the referee and engine.dtype")
    ] = "quickstart",
    override: Overrides = None,
) -> None:
    """Print what a model could have known as the defender of games that were played; see docs/evaluation.md."""
    settings = load_config(config, override or [])
    from cluster.commands.listen import run_listen

    run_listen(settings, model, games, _console())


@app.command()
def exploitability(
    target: Annotated[str, typer.Argument(help="a run's folder, a model folder, or `smollm2-135m-instruct`")],
    config: Annotated[
        str | None, typer.Option(help="of a model: configuration with the game and the prompts (default kuhn)")
    ] = None,
    override: Overrides = None,
) -> None:
    """Print how far a policy is from the optimum of a solved game, exactly; see docs/games.md."""
    if (config or override) and (Path(target) / "config.yaml").is_file():
        raise ConfigError(f"{target} is a run, which has its own configuration; leave out --config and -o")
    settings = load_config(config or "kuhn", override or [])
    from cluster.commands.exploitability import run_exploitability

    run_exploitability(settings, target, _console())


@app.command()
def dashboard(out: Annotated[Path, typer.Option(help="JSON file to write")]) -> None:
    """A Grafana dashboard of everything that runs export to Prometheus; see docs/monitoring.md."""
    from cluster.tracking.grafana import write_dashboard

    write_dashboard(out, _console())


class _RunConsole(Console):
    """Of a run: it goes on when whoever reads its output has gone, such as `| tee` or the other end of a pipe."""

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):  # the default sends all further output to nowhere, and ends the process
            super().on_broken_pipe()


def _console(of: type[Console] = Console) -> Console:
    """The terminal, or lines of 100 columns without one."""
    console = of()
    return console if console.is_terminal else of(width=100)


def main() -> None:
    """What `spag_ray.__main__` calls."""
    sys.exit(run_guarded(app))
