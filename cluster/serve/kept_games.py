"""Games that persons agreed to keep, in FOLDER/episodes/visit.log: `spag-ray report` and `export` read the folder."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.serve.visits import STAGE
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import EpisodeLog, read_records
from spag_ray.episodes.wire import encode
from spag_ray.errors import RunFolderError, SpagError
from spag_ray.host.folder_lease import held


class KeptGames:
    """A log that is open for appending."""

    def __init__(self, path: Path) -> None:
        self._log = EpisodeLog(path)
        self._number = sum(1 for _ in read_records(path))
        self._adding = threading.Lock()

    def add(self, made: Callable[[int], Episode]) -> None:
        """Append an episode; `made` gives it for its number. It is on the disk when this returns."""
        with self._adding:
            try:
                self._log.append(encode(made(self._number)))
            except OSError as error:
                raise SpagError(f"the game could not be kept: {error.strerror}") from error
            self._number += 1

    def close(self) -> None:
        self._log.close()


@contextlib.contextmanager
def keeping(folder: Path | None) -> Iterator[KeptGames | None]:
    """The log of a folder, which is created, during the block; only one server or run may write into it. Raises
    RunFolderError."""
    if folder is None:
        yield None
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: games cannot be kept there: {error.strerror}") from error
    with held(folder):
        kept = KeptGames(folder / "episodes" / f"{STAGE}.log")
        try:
            yield kept
        finally:
            kept.close()
