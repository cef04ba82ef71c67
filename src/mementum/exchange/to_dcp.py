"""An export for torch.distributed.checkpoint: a folder that dcp.load reads on any number of ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from mementum.errors import MementumError
from mementum.exchange.folder import NewFolder


def write(folder: NewFolder, content: Mapping[str, Any]) -> None:
    """Write `content` by names. torch writes and syncs the files itself; the folder's name comes afterwards.

    The metadata and the plain values in it are pickles: that is torch's format, and reading them is the reader's
    risk. A folder is written once, so nothing is ever saved over files that have their metadata already."""
    writer = FileSystemWriter(folder.path, single_file_per_rank=True, sync_files=True, thread_count=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is what is meant
        try:
            save(dict(content), storage_writer=writer, no_dist=True)
        except CheckpointException as cause:
            raise MementumError(
                f"torch.distributed.checkpoint could not write: {next(iter(cause.failures.values()), cause)}",
                kept="the checkpoint; nothing was exported",
            ) from cause
