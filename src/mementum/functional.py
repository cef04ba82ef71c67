"""The functional door: save and load a dict of objects in a folder, with the same bytes and checks as a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Literal

from mementum.assemble import NAME, plain_fields, retention_of
from mementum.background import Background, Lasting
from mementum.catalog import address, tasks
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import Clock, SystemClock, timestamp
from mementum.decide.retain import Retention
from mementum.errors import CheckpointDamaged, NothingToResume, SaveFailed, TaskInUse, UsageError
from mementum.events import Emit, Emitter
from mementum.execute import origin
from mementum.execute.capture import BlockingCapture
from mementum.execute.commit import new_id
from mementum.execute.snapshot import Snapshot
from mementum.format import codec as codecs
from mementum.format import context as contexts
from mementum.live.component import Component
from mementum.live.fitting import Fit
from mementum.live.names import parameter_names
from mementum.live.stateful import PerRank, ValueState, component_for, models_in
from mementum.opening import open_task, root_folder
from mementum.records import Entry, Save, record
from mementum.recover.load import Loaded
from mementum.resuming import newest_whole, put_back, read_entry
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

TASK = "state"  # what the one task of a folder is called that was made by `save`
KEEP_LAST = 2  # the newest, and the one before it in case a disk loses the newest
WAIT_S = 600.0  # for a disk that a save is handed to; then the save counts as failed
