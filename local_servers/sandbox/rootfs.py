"""The file system a submission sees: a read-only tmpfs with what Python and numpy need bound or copied into it.

That is the standard library, the executable, a shell, and each shared library that they load; no other file of `/usr`
or of Python's prefix, where people may have installed or put what a submission must not read, a pool say. The fork
server builds it once in a mount namespace of its own and pivots into it; each run then only adds a private /tmp and
/proc. Nothing of the host is left below: no home folders, no project, no /etc but five harmless lines.
"""

import contextlib
import ctypes
import errno
import importlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence

from local_servers.sandbox import kernel

SHELL = "/bin/sh"
# Those that are there are needed too: time zones, locales, where the loader finds libraries.
_SYSTEM_DATA = ("/usr/share/zoneinfo", "/usr/lib/locale", "/etc/ld.so.cache", "/etc/localtime")
_LOADED_BY_THE_C_LIBRARY = ("libgcc_s.so.1", "libnss_files.so.2")
# Of the library's folder these are left out: what people have installed.
INSTALLED = ("site-packages", "dist-packages")
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
_COPIED_BYTES = 5 << 20  # larger files are bound: copies take memory
# Covered by the new root until the pivot; always there, and nobody's Python is installed below it.
_BUILD_SITE = "/sys"
# Its paths below /tmp (a Python installed there), which a run's private /tmp would hide.
_below_tmp: list[str] = []


def readable_paths(library: Sequence[str], packages: Sequence[str]) -> list[str]:
    """The absolute host paths a submission may read, but for what is INSTALLED: this interpreter's `library` (its
    module search path), `packages` (numpy's folders), and what they and a shell need of the system."""
    chosen: list[str] = []
    needed = [os.path.realpath(sys.executable), os.path.realpath(SHELL), *_mapped_files(library, packages)]
    for path in [*library, *packages, *_SYSTEM_DATA, os.path.join(sys.prefix, "share/zoneinfo"), *sorted(needed)]:
        if os.path.lexists(path) and not any(is_below(path, other) for other in chosen):
            chosen.append(path)
    return chosen


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is `folder`, or is in it at any depth."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def installed_in(folder: str) -> list[str]:
    """What is INSTALLED in a folder of Python's library."""
    return [path for name in INSTALLED if os.path.isdir(path := os.path.join(folder, name))]


def _mapped_files(library: Sequence[str], packages: Sequence[str]) -> set[str]:
    """Returns the files, above all shared libraries, that a shell maps, and this interpreter with numpy (in `packages`)
    and all extension modules of the folders `library` loaded. Only the dynamic loader knows them, so a forked process
    loads all and prints its memory map."""
    report_read, report_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Else, if this process ends early, the child would wait for ever to write what nobody reads.
            os.close(report_read)
            os.dup2(report_write, 1)
            extensions = [
                os.path.join(folder, name)
                for folder in filter(os.path.isdir, library)
                for name in os.listdir(folder)
                if ".so" in name
            ]
            # The C library loads these two by itself in a program that cancels a thread, or asks for users or hosts.
            for path in [*_LOADED_BY_THE_C_LIBRARY, *extensions]:
                with contextlib.suppress(OSError):  # it is not there, or needs what is not: no program can load it
                    ctypes.CDLL(path)
            if packages:
                sys.path.append(os.path.dirname(packages[0]))
                with contextlib.suppress(ImportError):
                    importlib.import_module("numpy")
            with open("/proc/self/maps", "rb") as file:
                os.write(1, file.read())
            # Become a shell that prints its own map: only builtins, as another program would have another map.
            os.execv(SHELL, ["sh", "-c", 'while read -r line; do echo "$line"; done < /proc/self/maps'])
        finally:
            os._exit(0)
    os.close(report_write)
    with open(report_read) as file:
        # A line is: address, permissions, offset, device, inode, path.
        paths = {fields[5] for line in file if len(fields := line.rstrip("\n").split(None, 5)) == 6}
    os.waitpid(pid, 0)
    return {path for path in paths if path.startswith("/") and os.path.isfile(path)}


def _links(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(path, target) of the links by which the loader finds these files: those between folders (/lib64), and those
    beside each file, or where the loader itself is looked for, that name it (libz.so.1)."""
    for folder in ("/", "/usr"):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(("lib", "bin", "sbin")) and os.path.islink(path):
                yield path, os.readlink(path)
    loader = {os.path.realpath(folder) for folder in ("/lib", "/lib64") if os.path.isdir(folder)}
    for folder in loader | {os.path.dirname(path) for path in files}:
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.islink(path) and os.path.realpath(path) in files:
                yield path, os.readlink(path)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _make_mount_point(path: str, is_folder: bool) -> None:
    """Make the empty folder or file, with the folders above it, that a bind mount then covers."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        write(path, "")


def enter(paths: Sequence[str]) -> None:
    """Build the read-only root file system that submissions see, of these host `paths` (files and folders) and a few
    devices, without what is INSTALLED below them (other packages), and make it this process's. It is built as a tmpfs
    over _BUILD_SITE, made read-only, and takes the place of the root. Needs CAP_SYS_ADMIN and a mount namespace of its
    own. OSError if the kernel refuses a step."""
    # First: where the host's mounts are shared, those made here would appear there too.
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    # Opened before the new root covers anything, and bound through /proc/self/fd.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in [*paths, *DEVICES] if not os.path.islink(path)}
    kernel.mount("coderl-rootfs", _BUILD_SITE, "tmpfs", kernel.MS_NOSUID, "size=256m,mode=755")
    for folder in ("proc", "tmp", "dev", "etc", "usr"):
        os.mkdir(f"{_BUILD_SITE}/{folder}", 0o755)
    named_links = [(path, os.readlink(path)) for path in [*paths, *DEVICES] if path not in sources]
    for path, link in [*_links(paths), *named_links]:
        os.makedirs(os.path.dirname(_BUILD_SITE + path), exist_ok=True)
        os.symlink(link, _BUILD_SITE + path)
    mounted = [_BUILD_SITE + path for path, source in sources.items() if _bind_or_copy(path, source)]
    for name, link in _DEVICE_LINKS.items():
        os.symlink(link, f"{_BUILD_SITE}/dev/{name}")
    for name, text in _ETC.items():
        write(f"{_BUILD_SITE}/etc/{name}", text)
    try:
        kernel.make_read_only(_BUILD_SITE)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        for target in [*mounted, _BUILD_SITE]:  # before Linux 5.12 each mount is remounted by itself
            kernel.remount_read_only(target)
    # For `mount_private`: each run's private /tmp covers these paths, and they are bound back into it.
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


def _bind_or_copy(path: str, source: int) -> bool:
    """Put a file or folder of the host (`source` is its descriptor) into the new root; whether by a mount. The fifty
    small libraries are copied, as few mounts make fast runs: the kernel copies them all for the namespace of each."""
    target, opened = _BUILD_SITE + path, f"/proc/self/fd/{source}"
    is_folder = os.path.isdir(path)
    _make_mount_point(target, is_folder)
    if os.path.isfile(path) and os.fstat(source).st_size <= _COPIED_BYTES:
        shutil.copy(opened, target)
        return False
    kernel.mount(opened, target, flags=kernel.MS_BIND | kernel.MS_REC)
    for installed in installed_in(path) if is_folder else ():  # an empty folder hides other packages
        kernel.mount("none", _BUILD_SITE + installed, "tmpfs", kernel.MS_RDONLY | kernel.MS_NOSUID, "size=4k")
    return True


def mount_private(size_bytes: int) -> None:
    """Give a run, in namespaces of its own, a private /tmp of at most `size_bytes` and a /proc with its own processes
    only, mounted over those that are there."""
    # Inodes are limited too: a million empty files take no space, but the kernel's memory.
    options = f"size={size_bytes},nr_inodes=20000,mode=700"
    # Opened before /tmp is covered, and bound back into it.
    kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in _below_tmp}
    kernel.mount("run", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    for path, descriptor in kept.items():
        _make_mount_point(path, os.path.isdir(f"/proc/self/fd/{descriptor}"))
        kernel.mount(f"/proc/self/fd/{descriptor}", path, flags=kernel.MS_BIND | kernel.MS_REC)
        os.close(descriptor)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    for proc_options in ("subset=pid", ""):  # processes only; before Linux 5.8 it is all of /proc or nothing
        try:
            kernel.mount("proc", "/proc", "proc", flags, proc_options)
            return
        except OSError:
            continue
    # A host that hides parts of its /proc forbids a new one: an empty folder in its place hides the host's.
    kernel.mount("none", "/proc", "tmpfs", flags | kernel.MS_RDONLY, "size=4k,mode=555")
