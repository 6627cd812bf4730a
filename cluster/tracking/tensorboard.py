"""TensorBoard's event files of a run: events.* in its folder, one for each of its lives.

They hold what curves.py draws and nothing that metrics.jsonl has not got, so they are made whole from it: a run that
goes on first writes what a previous attempt could not, or did not.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from google.protobuf.message import DecodeError
from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import text

from cluster.tracking.curves import Points
from spag_ray.config.files import shown_config

FLUSH_EVERY_S = 10.0
_HEADER, _LENGTH, _FOOTER = 12, struct.Struct("<Q"), 4  # of a record: its length and a checksum; its bytes; a checksum


class EventFiles:
    """Opens another file in `folder`. `write` returns before the file has it; after a crash the next life writes what
    is missing.

    Raises OSError when the disk takes no more.
    """

    def __init__(self, folder: Path) -> None:
        before = sorted(folder.glob("events.out.tfevents.*"))
        self._reached = _reached(before)
        life = f"{int(time.time()):010d}.{len(before):03d}"  # files are read in the order of their names
        name = f"events.out.tfevents.{life}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter(str(folder / name))
        self._flushed_at = time.monotonic()
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if config := shown_config(folder):
            lines = yaml.safe_dump(config, sort_keys=False).splitlines()
            indented = "\n".join(f"    {line}" for line in lines)  # Markdown for: as it stands
            self._write(Event(wall_time=time.time(), step=len(before), summary=text("config", indented)))

    def write(self, points: Points) -> None:
        """What no previous attempt has written of it."""
        event = Event(wall_time=points.time, step=points.x)
        for tag, value in points.values.items():
            if points.x <= self._reached.get(tag, -1):
                continue
            if isinstance(value, str):
                event.summary.MergeFrom(text(tag, value))
            else:
                event.summary.value.add(tag=tag, simple_value=value)
        if event.HasField("summary"):
            self._write(event)

    def close(self) -> None:
        self._writer.flush()
        self._writer.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        if time.monotonic() - self._flushed_at > FLUSH_EVERY_S:
            self._flushed_at = time.monotonic()
            self._writer.flush()


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, as far as it is whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while len(header := file.read(_HEADER)) == _HEADER:
            (length,) = _LENGTH.unpack_from(header)
            if length > size - file.tell():
                return
            data = file.read(length)
            if len(file.read(_FOOTER)) < _FOOTER:
                return
            try:
                yield Event.FromString(data)
            except DecodeError:
                return


def _reached(paths: list[Path]) -> dict[str, int]:
    """{tag: the last place where it has a value}"""
    reached: dict[str, int] = {}
    for path in paths:
        for event in read_events(path):
            for value in event.summary.value:
                tag = value.tag.removesuffix("/text_summary")
                reached[tag] = max(reached.get(tag, -1), event.step)
    return reached
