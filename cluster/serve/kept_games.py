"""Games that persons agreed to keep, in FOLDER/episodes/visit.log: `spag-ray report` and `export` read the folder."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.serve.visits import STAGE
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import EpisodeLog, read_records
from spag_ray.episodes.wire import encode, read_head
from spag_ray.errors import InputError, LeaseLostError, RunFolderError, SpagError
from spag_ray.host.folder_lease import FolderLease, held


class KeptGames:
    """A log that is open for appending, for as long as this process has the folder's lease."""

    def __init__(self, path: Path, lease: FolderLease) -> None:
        self._log = EpisodeLog(path)
        self._lease = lease
        self._number = 0  # of the next game: a damaged record leaves a gap, and no number comes twice
        for record in read_records(path):
            self._number += 1
            with contextlib.suppress(InputError):
                self._number = max(self._number, read_head(record).number + 1)
        self._adding = threading.Lock()  # games come from several threads; `close` waits for the one that writes
        self._is_closed = False

    def add(self, made: Callable[[int], Episode]) -> None:
        """Append an episode; `made` gives it for its number. It is on the disk when this returns. Raises SpagError."""
        with self._adding:
            if self._is_closed:
                raise SpagError("the game could not be kept: the server stops")
            try:
                self._lease.check()  # a machine that slept may have lost it to another server
                self._log.append(encode(made(self._number)))
            except LeaseLostError as error:
                raise SpagError("the game could not be kept: another server writes into the folder now") from error
            except OSError as error:
                raise SpagError(f"the game could not be kept: {error.strerror}") from error
            self._number += 1

    def close(self) -> None:
        with self._adding:
            self._is_closed = True
            self._log.close()


@contextlib.contextmanager
def keeping(folder: Path | None) -> Iterator[KeptGames | None]:
    """The log of a folder, which is created, during the block; only one server or run may write into it. Raises
    RunFolderError."""
    if folder is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lease = stack.enter_context(held(folder))
            kept = KeptGames(folder / "episodes" / f"{STAGE}.log", lease)
        except OSError as error:
            raise RunFolderError(f"{folder}: games cannot be kept there: {error.strerror}") from error
        stack.callback(kept.close)
        yield kept
