"""Folders recorded at an address: what is done on one machine is found on another."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coderl_tasks.addresses import filesystem, joined
from coderl_tasks.journal.atomic import make_folder, write_bytes
from coderl_tasks.journal.directory_lock import DirectoryBusyError
from coderl_tasks.paths import coderl_home
from coderl_tasks.runtime.remote_shards import Mirror, recorded_at


@pytest.fixture
def address(s3: str) -> Iterator[str]:
    address = joined(s3, "mirrored", "shard")
    yield address
    fs, root = filesystem(address)
    if fs.exists(root):
        fs.rm(root, recursive=True)


def remote(address: str) -> dict[str, bytes]:
    fs, root = filesystem(address)
    fs.invalidate_cache()
    return {name.removeprefix(f"{root}/"): fs.cat_file(name) for name in fs.find(root)}


def test_only_what_changed_is_sent_and_what_is_gone_is_deleted(address: str, tmp_path: Path) -> None:
    mirror = Mirror(address, tmp_path)
    make_folder(tmp_path / "groups")
    write_bytes(tmp_path / "groups" / "00.parquet", b"zero")
    write_bytes(tmp_path / "groups" / "01.parquet", b"one")
    (tmp_path / ".02.parquet.x.tmp").write_bytes(b"torn")
    mirror.send()
    assert remote(address) == {"groups/00.parquet": b"zero", "groups/01.parquet": b"one"}
    fs, root = filesystem(address)
    fs.pipe_file(joined(root, "groups", "00.parquet"), b"untouched")
    write_bytes(tmp_path / "rollouts.parquet", b"all")
    (tmp_path / "groups" / "01.parquet").unlink()
    mirror.send()
    assert remote(address) == {"groups/00.parquet": b"untouched", "rollouts.parquet": b"all"}


def test_files_are_sent_as_they_were_written(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two files must not leave groups without what says whose they are, which is written first."""
    make_folder(tmp_path / "groups")
    for written, name in enumerate(("groups/request.json", "groups/01.parquet", "groups/00.parquet")):
        write_bytes(tmp_path / name, name.encode())
        os.utime(tmp_path / name, ns=(0, 10**9 + written))
    mirror, sent = Mirror(address, tmp_path), list[str]()
    put = mirror._put

    def noted(name: str) -> bool:
        sent.append(name)
        return put(name)

    monkeypatch.setattr(mirror, "_put", noted)
    mirror.send()
    assert sent == ["groups/request.json", "groups/01.parquet", "groups/00.parquet"]
    assert sorted(remote(address)) == sorted(sent)


async def test_a_second_machine_goes_on_where_the_first_was_killed(address: str, tmp_path: Path) -> None:
    first = Mirror(address, tmp_path)
    write_bytes(tmp_path / "00.parquet", b"zero")
    first.send()
    write_bytes(tmp_path / "01.parquet", b"never sent")
    async with recorded_at(address) as (folder, changed):
        assert {path.name for path in folder.iterdir()} == {"00.parquet"}
        write_bytes(folder / "01.parquet", b"one")
        changed()
        while "01.parquet" not in remote(address):
            await asyncio.sleep(0)
        write_bytes(folder / "02.parquet", b"two")
    assert remote(address) == {"00.parquet": b"zero", "01.parquet": b"one", "02.parquet": b"two"}
    assert not folder.exists()


async def test_what_was_recorded_is_sent_when_the_work_fails(address: str) -> None:
    with pytest.raises(RuntimeError, match="out of luck"):
        async with recorded_at(address) as (folder, _):
            write_bytes(folder / "00.parquet", b"zero")
            raise RuntimeError("out of luck")
    assert remote(address) == {"00.parquet": b"zero"}


@pytest.mark.parametrize("kind", ["local", "remote"])
async def test_one_process_at_a_time(kind: str, address: str, tmp_path: Path) -> None:
    address = str(tmp_path / "shard") if kind == "local" else address
    async with recorded_at(address) as (folder, _):
        # at its own place, or as a copy below the user's home that is not shared
        assert (folder == tmp_path / "shard") == (kind == "local")
        assert folder.is_relative_to(coderl_home()) == (kind == "remote")
        with pytest.raises(DirectoryBusyError):
            async with recorded_at(address):
                pass
