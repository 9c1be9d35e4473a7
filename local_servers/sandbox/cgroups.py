"""A memory and process limit over everything a slot runs, where this process may make control groups (v1 or v2).

The limits of a process (RLIMIT_AS) do not add up over a fork bomb's children or the files in a tmpfs; a control group's
do. A worker is moved into its slot's group once, so that no run pays for a migration.
"""

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from local_servers.sandbox.worker_link import SCRATCH_BYTES

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "coderl-sandbox-"
_MAX_PROCESSES = 192
_END_SECONDS = 5
_OWN_BYTES = 256 << 20  # the worker, the run's first process with its buffers, the driver


def _own_groups() -> dict[str, Path]:
    """The folder of this process's own group for each v1 controller, and under "" for v2; only what is mounted."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            folder = _ROOT / controller / path.lstrip("/")
            if (folder / "cgroup.procs").exists():
                groups[controller] = folder
    return groups


@dataclass(slots=True)
class SlotGroup:
    """The control groups of one slot: memory and pids under v1, one folder under v2; none where they cannot be made."""

    folders: list[Path]
    memory_file: Path | None
    memory_bytes: int = 0

    @classmethod
    def create(cls, index: int) -> "SlotGroup":
        """The groups of slot `index`; none where this process may not make them."""
        own = _own_groups()
        name = f"{_PREFIX}{os.getpid()}-{index}"
        made: list[Path] = []
        try:
            if "memory" in own and "pids" in own:
                places, memory_name = [own["memory"], own["pids"]], "memory.limit_in_bytes"
            else:
                # Under v2 a group with processes has no children with limits: the root is the place, for root.
                places = [folder for folder in (own.get(""), _ROOT) if folder is not None and _delegated(folder)][:1]
                memory_name = "memory.max"
                if not places:
                    return cls([], None)
            for place in places:
                _sweep(place)
                (place / name).mkdir()
                made.append(place / name)
            (made[-1] / "pids.max").write_text(str(_MAX_PROCESSES))
            return cls(made, made[0] / memory_name)
        except OSError:
            cls(made, None).remove()
            return cls([], None)

    def add(self, pid: int) -> None:
        """Move a worker in, and with it all it will ever fork."""
        for folder in self.folders:
            with contextlib.suppress(ProcessLookupError):
                (folder / "cgroup.procs").write_text(str(pid))

    def limit_memory(self, memory_mib: int, payload_bytes: int) -> None:
        """Allow the next job its memory, its files and our own part."""
        # What the run's tmpfs holds counts as memory of the group, and so do the copies of a request on its way in.
        wanted = (memory_mib << 20) + SCRATCH_BYTES + 3 * payload_bytes + _OWN_BYTES
        if self.memory_file is not None and wanted != self.memory_bytes:
            # Refused while the pages of the run before are still being freed: then its limit stays for this one.
            with contextlib.suppress(OSError):
                self.memory_file.write_text(str(wanted))
                self.memory_bytes = wanted

    def remove(self) -> None:
        """Remove the groups once their processes, which must have been killed, are gone."""
        deadline = time.monotonic() + _END_SECONDS
        for folder in self.folders:
            # A group with processes cannot be removed, and killed ones take a moment to go.
            while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
                time.sleep(0.005)
            try:
                folder.rmdir()
            except OSError as error:
                print(f"sandbox: the control group {folder} stays: {error.strerror}", file=sys.stderr)
        self.folders = []


def _delegated(folder: Path) -> bool:
    """Whether children of a v2 group get the memory and pids controllers."""
    control = folder / "cgroup.subtree_control"
    return control.exists() and {"memory", "pids"} <= set(control.read_text().split())


def _sweep(place: Path) -> None:
    """Remove the empty groups of servers that were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
