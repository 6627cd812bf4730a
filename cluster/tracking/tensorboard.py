"""TensorBoard's event file of a run: events.* in its folder.

It holds the points of curves.py; everything in it is also in metrics.jsonl. A resumed run removes the file and writes a
new one: the recorder first passes every line of metrics.jsonl to it.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import yaml
from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import text

from spag_ray.config.loading import shown_config
from spag_ray.results.curves import Points

FLUSH_EVERY_S = 10.0


class EventFile:
    """Opens a new file in `folder` and removes those of previous attempts. `write` returns before the data is on disk.

    Raises OSError if the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        previous = list(folder.glob("events.out.tfevents.*"))
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter(str(folder / name))
        self._flushed_at = time.monotonic()
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if config := shown_config(folder):
            lines = yaml.safe_dump(config, sort_keys=False).splitlines()
            indented = "\n".join(f"    {line}" for line in lines)  # a Markdown code block
            self._write(Event(wall_time=time.time(), step=0, summary=text("config", indented)))
        for path in previous:
            path.unlink(missing_ok=True)

    def write(self, points: Points) -> None:
        event = Event(wall_time=points.time, step=points.x)
        for tag, value in points.values.items():
            if isinstance(value, str):
                event.summary.MergeFrom(text(tag, value))
            else:
                event.summary.value.add(tag=tag, simple_value=value)
        self._write(event)

    def close(self) -> None:
        self._writer.flush()
        self._writer.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        if time.monotonic() - self._flushed_at > FLUSH_EVERY_S:
            self._flushed_at = time.monotonic()
            self._writer.flush()
