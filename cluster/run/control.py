"""Whether a run is to pause or to stop, and whether it still owns its folder."""

from __future__ import annotations

import time

from spag_ray.errors import StopRequestedError
from spag_ray.host.folder_lease import FolderLease


class RunControl:
    """The requests to one run: sessions set them, the loop checks them."""

    def __init__(self, lease: FolderLease) -> None:
        self.lease = lease
        self.is_paused = False
        self.is_save_wanted = False
        self._stop_at: float | None = None

    def save_soon(self) -> None:
        """Write a checkpoint at the next point where one can be written."""
        self.is_save_wanted = True

    def stop_soon(self, seconds: float) -> None:
        """Stop at the next point where nothing is lost; this process ends in `seconds`."""
        self._stop_at = time.monotonic() + seconds

    @property
    def is_to_stop(self) -> bool:
        return self._stop_at is not None

    @property
    def is_waiting(self) -> bool:
        """Paused, and no stop is requested."""
        return self.is_paused and not self.is_to_stop

    @property
    def seconds_left(self) -> float:
        """Until this process ends, once a stop is requested; 0 before the request and after the end."""
        return 0.0 if self._stop_at is None else max(0.0, self._stop_at - time.monotonic())

    def check_stop(self) -> None:
        """Wait while the run is paused. Raises StopRequestedError once a stop is requested, and LeaseLostError when
        another run has taken the folder."""
        self.lease.check()
        while self.is_waiting:
            time.sleep(0.1)
            self.lease.check()
        if self.is_to_stop:
            raise StopRequestedError("the run was asked to stop")
