"""Whether a run is to pause or to stop, and whether its folder is still its own."""

from __future__ import annotations

import time

from spag_ray.errors import StopRequestedError
from spag_ray.host.folder_lease import FolderLease


class RunControl:
    """Of one run; sessions change it while the loop asks it."""

    def __init__(self, lease: FolderLease) -> None:
        self.lease = lease
        self.is_paused = False
        self._stop_at: float | None = None

    def stop_soon(self, seconds: float) -> None:
        """Stop at the next place where nothing is lost by it; `seconds` are left until the end of this process."""
        self._stop_at = time.monotonic() + seconds

    @property
    def is_to_stop(self) -> bool:
        return self._stop_at is not None

    @property
    def is_waiting(self) -> bool:
        """Paused, and nobody has asked for the end meanwhile."""
        return self.is_paused and not self.is_to_stop

    @property
    def seconds_left(self) -> float:
        """Until the end of this process, once the run is to stop; 0 before that, and after it."""
        return 0.0 if self._stop_at is None else max(0.0, self._stop_at - time.monotonic())

    def check_stop(self) -> None:
        """Waits while the run is paused. Raises StopRequestedError once somebody has asked for it, and LeaseLostError
        when the folder is another run's by now."""
        self.lease.check()
        while self.is_waiting:
            time.sleep(0.1)
            self.lease.check()
        if self.is_to_stop:
            raise StopRequestedError("the run was asked to stop")
