"""`spag-ray report`, the page of a run folder, which uses a tokenizer of the run to locate tokens in texts; and the
arguments of `compare` and `config`, whose code no job needs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from actors.models import BUILT_IN, cache_folder
from cluster.monitor.terminal import say
from spag_ray.host.whole_files import refuse_existing
from spag_ray.results.report.files import read_files
from spag_ray.results.report.page import write_report
from spag_ray.results.report.tokens import Decode


def make_report(folder: Path, out: Path | None, console: Console) -> None:
    """Writes the report to `out`, or into the run folder, where an existing report is replaced. Raises RunFolderError
    if `folder` is not a run folder, InputError if `out` exists."""
    if out is not None:
        refuse_existing(out)
    decode = decoder(folder, console)
    say(console, str(write_report(folder, out or folder / "report.html", decode)), highlight=False)


def report_finished(folder: Path, console: Console) -> None:
    """Write the report of a run that has ended; an error here is printed and does not fail the run."""
    try:
        make_report(folder, None, console)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        say(console, f"no report ({reason}); `spag-ray report {shlex.quote(str(folder))}` makes one", highlight=False)


def decoder(folder: Path, console: Console) -> Decode | None:
    """The first tokenizer found: that of a model that the run saved, or of its base model."""
    for path in _tokenizers(folder):
        try:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for a file that it cannot read
            say(console, f"{path} is not used: {error}", highlight=False)
            continue
        return lambda token_ids: tokenizer.decode(token_ids, skip_special_tokens=True)
    return None


def _tokenizers(folder: Path) -> list[Path]:
    config = read_files(folder).config
    models = sorted(path for path in (folder / "models").glob("*") if path.is_dir())
    if config is not None:
        models.append(cache_folder() / BUILT_IN if config.model == BUILT_IN else Path(os.path.expanduser(config.model)))
    return [path for model in models if (path := model / "tokenizer.json").is_file()]


def compare(
    run_dirs: Annotated[list[Path], typer.Argument(help="folders of runs, such as the seeds of one configuration")],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="instead: the last value of KIND/FIELD of metrics.jsonl (step/loss); may be given again"),
    ] = None,
) -> None:
    """Print runs side by side: what each came to, and the mean over them; see docs/evaluation.md."""
    from cluster.monitor.comparison import print_comparison

    print_comparison(run_dirs, metric or [])


def config(
    key: Annotated[
        str | None, typer.Argument(help="a key or a part, such as objective.clip_range; all parts if none")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="all keys, as in docs/configuration.md")] = False,
) -> None:
    """Explain the keys of the configuration: type, default, meaning; see docs/configuration.md."""
    from cluster.planning.config_reference import explain

    explain(key, markdown)
