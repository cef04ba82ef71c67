"""The floors of the house, and who may do what: what `test_house.py` keeps."""

from __future__ import annotations

FLOORS = (  # a file imports its own room and lower floors, nothing else
    {"errors", "clock"},
    {"records", "plugins", "data", "once", "masking"},
    {"cgroup"},
    {"events", "config", "perceive", "decide", "format", "storage"},
    {"live"},
    {"execute", "catalog", "recover"},
    {"basing"},
    {"rewriting", "recoding", "lodging"},
    {"saving", "resuming", "pruning", "settling", "withering", "placing", "mirroring", "frozen", "rooting", "release"},
    {"places", "repairing", "scrubbing", "assemble", "policies", "watermarks"}
    | {"past", "journal", "noting", "soundness", "belated"},
    {"opening", "asking", "tidying", "vanishing"},
    {"displacing"},
    {"compressing", "forwarding", "landing", "mending", "fetching"},
    {"background", "ram", "slotting", "tending"},
    {"taking", "planning", "deciding", "quarantine", "restoring", "draining", "clearing", "timeline"},
    {"batches", "rolling"},
    {"run"},
    {"returning", "sensing"},
    {"equipping"},
    {"doors", "functional", "branching", "metrics", "supervise", "web", "simulate"},
    {"exchange"},
    {"cli", "integrations"},
)

# Allow-lists hold files, and rooms with a trailing slash.
TORCH = (
    "perceive/",  # gradients, and values that are still on a device
    "data.py",  # the sampler is torch's, and keyed augmentation seeds torch's generators
    "live/",  # the objects that training holds
    "format/typed_json.py",  # torch.Size, dtype and device are part of the state
    "format/typed_tensors.py",  # small tensors inside the state
    "execute/structure.py",  # which live tensors go where
    "execute/capture.py",  # copies them
    "execute/overlap.py",  # holds an optimizer's step back until it has
    "execute/moves.py",  # storages that give up their memory wait for it
    "execute/witness.py",  # and looks at them before and after
    "execute/device.py",  # copies from a GPU
    "execute/gathered.py",  # reads them when they are written
    "execute/finite.py",  # looks whether what a task begins with holds infinities
    "recover/load.py",  # puts them back
    "assemble.py",  # tells models from other arguments
    "exchange/",  # torch's own formats, and those that are made of its tensors
)
NUMPY_AT_TOP = (
    "data.py",
    "live/",
    "execute/",
    "recover/",
    "frozen.py",  # reads the frozen tensors of snapshots
    "format/planes.py",  # splits bytes of floats; it is imported by name, late
    "format/delta.py",  # subtracts them; the same
    "perceive/onset.py",  # the same, when there is trouble
    "exchange/",  # stands on torch, which imports numpy
    "testing/",
)
SQLALCHEMY = (  # the command line starts without it
    "catalog/sql.py",
    "catalog/sql_engine.py",
    "catalog/sql_reading.py",
    "catalog/sql_schema.py",
    "catalog/sql_tables.py",
    "catalog/sql_writing.py",
)
DISK = (  # the one door to the file system: that makes simulation possible
    "storage/disk.py",
    "storage/direct.py",
    "execute/shared_file.py",  # slots in shared memory: locked and mapped, never durable
)
CLOCK = ("clock.py",)  # the one source of time, for the same reason
BROAD_EXCEPT = (
    "events.py",  # a listener is the user's code
    "catalog/shared.py",  # a thread's end
    "execute/worker.py",  # a thread's end
    "execute/copying.py",  # a copy, whose failure is raised in its save
    "execute/copier.py",  # a thread's end
    "execute/beside.py",  # a thread's end
    "execute/behind.py",  # a thread's end
    "tending.py",  # a thread's end
    "perceive/notices.py",  # a signal handler of the user's, whose exception is kept for the step's end
    "run.py",  # the border that keeps our faults out of training
    "deciding.py",  # the same
    "functional.py",  # a thread's end
)
PRINTING = ("cli/",)  # its output is for a person
