"""The event stream: who watches, what workers record, and what they and their GPUs tell (`gt/wire/telemetry.py`)."""

from __future__ import annotations

from typing import Any, NamedTuple

from .fields import Measure, Words


class Watch(NamedTuple):
    """The watcher wants events, and says how many it has read.

    From watcher to dispatcher.

    * `level`: 0 none, 1 summaries, 2 everything (`gt/wire/telemetry.py`).
    * `seen`: how many batches it has read; more than a few that it has not are not sent.
    """

    level: int
    seen: int


class Record(NamedTuple):
    """The receiver records events.

    From dispatcher to worker.

    * `level`: as in `Watch`.
    * `rate`: the most events a second that are recorded one by one; others are added up.
    """

    level: int
    rate: int


class Events(NamedTuple):
    """A batch of events (docs/events.md).

    From worker to dispatcher; from dispatcher to watcher.

    * `sent`: when, in nanoseconds on its sender's monotonic clock.
    * `dropped`: how many events before it were lost.
    * `events`: each a list (`encode_event` in `gt/wire/telemetry.py`).
    """

    sent: int
    dropped: int
    events: list[Any]


class Health(NamedTuple):
    """The state of a worker's GPU, as NVML says, in place of a `Ping`.

    From pulse to dispatcher.

    * `temperature`: degrees Celsius.
    * `power`: milliwatts.
    * `power_limit`: milliwatts.
    * `busy`: the percentage of the last moment in which a kernel ran.
    * `used`: bytes, by any process.
    * `total`: bytes.
    * `errors`: uncorrected memory errors since the driver was loaded.
    * `slowed`: why it is slowed down ('temperature', …).
    """

    temperature: Measure
    power: Measure
    power_limit: Measure
    busy: Measure
    used: Measure
    total: Measure
    errors: Measure
    slowed: Words


class FileProgress(NamedTuple):
    """How far the worker has come with the files of marks, which a thread of its own writes and reads.

    From pulse to dispatcher.

    * `steps`: how much of that it has done since its process began; it grows whenever something was written or a file is done.
    * `idle`: whether all of it is done.
    """

    steps: int
    idle: bool
