"""Starts a sandbox server for the tests, under conditions that `serve` itself has no business with.

Options: --concurrency=N, --queue=N, --allow-unisolated, --key=KEY, --prepared=TEXT, --hidden=FOLDER,
--as-ordinary-user (from root), --forbid-namespaces (as a distribution or a container runtime would), --forbid-landlock,
--forbid-dropping (no process can give up its capabilities).
"""

import os
import sys
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
FIRST_UID = 1_800_000_000

sys.path.insert(0, str(PROJECT_ROOT))
# The system's Python borrows the packages of the one that runs the tests.
sys.path.append(os.environ["TEST_SITE_PACKAGES"])

from local_servers.sandbox import kernel, sandbox_server, seccomp  # noqa: E402
from local_servers.server_errors import ServerError  # noqa: E402


def become_ordinary_user() -> None:
    """One that no other server is: the limit of processes counts a user's, and tests may run at the same time."""
    os.setgroups([])
    for uid in (FIRST_UID + os.getpid(), NOBODY):
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            break
        except OSError:  # a container may have few user ids
            if uid == NOBODY:
                raise
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def forbid_namespaces() -> None:
    """Enter a user namespace in which no other can be made, and give its rights up again."""
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    kernel.drop_capabilities()


def forbid_landlock() -> None:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.Filter(seccomp.deny([kernel.numbers().landlock_create_ruleset])).install()


def forbid_dropping() -> None:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.Filter(seccomp.deny([kernel.numbers().capset])).install()


def main(options: list[str]) -> None:
    values = {name: value for name, _, value in (option.partition("=") for option in options)}
    if "--as-ordinary-user" in values:
        become_ordinary_user()
    if "--forbid-namespaces" in values:
        forbid_namespaces()
    if "--forbid-landlock" in values:
        forbid_landlock()
    if "--forbid-dropping" in values:
        forbid_dropping()
    if "--queue" in values:
        sandbox_server.MIN_QUEUE, sandbox_server.QUEUE_PER_SLOT = int(values["--queue"]), 0
    try:
        sandbox_server.serve(
            0,
            concurrency=int(values.get("--concurrency", 2)),
            allow_unisolated="--allow-unisolated" in values,
            key=values.get("--key"),
            prepared=[text for text in [values.get("--prepared")] if text],
            hidden={"a hidden folder": Path(values["--hidden"])} if "--hidden" in values else None,
        )
    except ServerError as error:
        sys.exit(f"refused: {error}")


main(sys.argv[1:])
