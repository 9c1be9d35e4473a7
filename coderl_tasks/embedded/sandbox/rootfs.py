"""The file system a submission sees: a read-only tmpfs with the system's libraries, Python and numpy bound
into it.

The fork server builds it once in a mount namespace of its own and pivots into it; each run then only adds a
private /tmp and /proc. Nothing of the host is left below: no home folders, no project, no /etc but five
harmless lines.
"""

# Plain `os` calls on these paths: they are made for every run.
# ruff: noqa: PTH102, PTH103, PTH112, PTH114, PTH115, PTH120, PTH123, PTH211

import errno
import os
from collections.abc import Sequence

from coderl_tasks.embedded.sandbox import kernel

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
NOBODY = 65534
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "shm": "/tmp",
}
_ETC = {
    "passwd": f"nobody:x:{NOBODY}:{NOBODY}:nobody:/tmp:/bin/sh\n",
    "group": f"nogroup:x:{NOBODY}:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
# Covered by the new root until the pivot; always there, and nobody's Python is installed below it.
_BUILD_SITE = "/sys"
# Its paths below /tmp (a Python installed there), which a run's private /tmp would hide.
_below_tmp: list[str] = []


def readable_paths(extra: Sequence[str]) -> list[str]:
    """The absolute host paths a submission may read: the system's, and `extra` (Python's prefix, numpy), most
    general first."""
    chosen: list[str] = []
    for path in [*SYSTEM_FOLDERS, *SYSTEM_FILES, *sorted(extra)]:
        covered = any(path == other or path.startswith(other + "/") for other in chosen)
        if os.path.lexists(path) and not covered:
            chosen.append(path)
    return chosen


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _make_read_only(targets: Sequence[str]) -> None:
    """Make the new root and the mounts below it read-only."""
    try:
        kernel.make_read_only(_BUILD_SITE)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        # Before Linux 5.12 each mount is remounted by itself.
        for target in [*targets, _BUILD_SITE]:
            kernel.remount_read_only(target)


def enter(extra: Sequence[str]) -> None:
    """Build the root file system and make it this process's.

    Needs CAP_SYS_ADMIN and a mount namespace of its own. OSError if the kernel refuses a step.
    """
    # First: where the host's mounts are shared, those below would appear there too.
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    paths = readable_paths(extra)
    # Opened before the new root covers anything, and bound through /proc/self/fd.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in [*paths, *DEVICES] if not os.path.islink(path)}
    kernel.mount("coderl-rootfs", _BUILD_SITE, "tmpfs", kernel.MS_NOSUID, "size=1m,mode=755")
    for folder in ("proc", "tmp", "dev", "etc"):
        os.mkdir(f"{_BUILD_SITE}/{folder}", 0o755)
    for path in [*paths, *DEVICES]:
        target = _BUILD_SITE + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path not in sources:
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            _write(target, "")
        kernel.mount(f"/proc/self/fd/{sources[path]}", target, flags=kernel.MS_BIND | kernel.MS_REC)
    for name, link in _DEVICE_LINKS.items():
        os.symlink(link, f"{_BUILD_SITE}/dev/{name}")
    for name, text in _ETC.items():
        _write(f"{_BUILD_SITE}/etc/{name}", text)
    _make_read_only([_BUILD_SITE + path for path in sources])
    _below_tmp[:] = [path for path in sources if path.startswith("/tmp/")]
    # A private proc can only be mounted where the host's is visible; each run covers this one with its own.
    kernel.mount("/proc", f"{_BUILD_SITE}/proc", flags=kernel.MS_BIND | kernel.MS_REC)
    for descriptor in sources.values():
        os.close(descriptor)
    # With both arguments the same the old root is mounted over the new one, and is what "." then unmounts: no folder
    # for it is needed in a root that is already read-only.
    os.chdir(_BUILD_SITE)
    kernel.pivot_root(".", ".")
    kernel.unmount(".")
    os.chdir("/")


def mount_private(size_bytes: int) -> None:
    """Cover /tmp and /proc with fresh ones of this run's namespaces; /tmp holds at most `size_bytes`."""
    # Inodes too: empty files take no space, and a million of them the kernel's memory.
    options = f"size={size_bytes},nr_inodes=20000,mode=700"
    # Opened before /tmp is covered, and bound back into it.
    kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in _below_tmp}
    kernel.mount("run", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    for path, descriptor in kept.items():
        os.makedirs(path, exist_ok=True)
        kernel.mount(f"/proc/self/fd/{descriptor}", path, flags=kernel.MS_BIND | kernel.MS_REC)
        os.close(descriptor)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    for proc_options in ("subset=pid", ""):  # before Linux 5.8 it is all of it or nothing
        try:
            kernel.mount("proc", "/proc", "proc", flags, proc_options)
            return
        except OSError:
            continue
    # A host that hides parts of its /proc forbids a new one: an empty folder in its place hides the host's.
    kernel.mount("none", "/proc", "tmpfs", flags | kernel.MS_RDONLY, "size=4k,mode=555")
