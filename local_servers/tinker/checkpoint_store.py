"""Runs and checkpoints on disk, shared by every server of this user and kept across restarts.

    <root>/<run id>/run.json
    <root>/<run id>/weights/<name>.json           the checkpoint's record; names its data folder
    <root>/<run id>/sampler_weights/<name>.json
    <root>/<run id>/data/<unique>/                the files, never changed once they are there

A checkpoint exists from the moment its record is renamed into place, which comes last, so a crash leaves the old one
or the new one. Overwriting, publishing and a new time to live replace the record alone.
"""

import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from local_servers.tinker.records import (
    KIND_NAMES,
    CheckpointKind,
    CheckpointRecord,
    RunRecord,
    StoredFile,
    check_name,
    check_run_id,
    expiry,
    parse_path,
)
from local_servers.tinker.refusal import Refusal

_LEFTOVER_AGE_S = 24 * 3600
R = TypeVar("R", bound=BaseModel)
logger = logging.getLogger(__name__)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's entries (a rename into it, say), survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Put `text` in the place of `path` at once; if not `durable` it survives a killed process but not a power cut."""
    aside = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        aside.write_text(text, encoding="utf-8")
        # Before the rename: else a power cut may leave the new name with an empty file behind it.
        if durable:
            sync(aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class CheckpointStore:
    """The store under one root folder, which is made for this user alone if it is not there. Methods block on the
    disk; call them from a worker thread where that matters."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save_run(self, run: RunRecord, *, durable: bool = True) -> None:
        folder = self.root / run.run_id
        folder.mkdir(exist_ok=True)
        replace_text(folder / "run.json", run.model_dump_json(indent=1), durable=durable)

    def run(self, run_id: str) -> RunRecord:
        """The run's record; Refusal 404 if there is none, 422 if it is damaged."""
        file = self.root / check_run_id(run_id) / "run.json"
        run = _stored(RunRecord, file, f"the record of training run {run_id}")
        if run is None:
            raise Refusal(404, f"there is no training run {run_id}")
        return run

    def runs(self) -> list[RunRecord]:
        """All runs, the most recently used first; damaged records are left out with a warning."""
        files = self.root.glob("*:train:*/run.json")
        found = [run for file in files if (run := _stored(RunRecord, file)) is not None]
        return sorted(found, key=lambda run: (-run.last_request_at, run.run_id))

    def delete_run(self, run_id: str) -> None:
        """Remove the run with all its checkpoints; Refusal 404 if there is none."""
        # Out of sight in one rename: whoever lists runs meanwhile sees all of it or nothing.
        folder = self.root / self.run(run_id).run_id
        aside = self.root / f".tmp-{uuid.uuid4().hex}"
        folder.rename(aside)
        shutil.rmtree(aside)

    def write(
        self,
        run: RunRecord,
        kind: CheckpointKind,
        name: str,
        fill: Callable[[Path], None],
        *,
        overwrite: bool = False,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> CheckpointRecord:
        """Saves the checkpoint `name` of `run`: the files that `fill` writes into the empty folder it is given, and a
        record of them. Refusal 409 if the name is taken."""
        expires_at = expiry(ttl_seconds)
        record_file = self.root / run.run_id / kind / f"{check_name(name)}.json"
        old = self._living(record_file, warn=overwrite)  # a damaged record is in nobody's way when it is overwritten
        if old is not None and not overwrite:
            raise Refusal(409, f"{old.path} exists: choose another name, or overwrite it")
        data = self.root / run.run_id / "data" / uuid.uuid4().hex
        aside = data.with_name(f".tmp-{data.name}")
        aside.mkdir(parents=True)
        try:
            fill(aside)
            files = {}
            for file in sorted(path for path in aside.rglob("*") if path.is_file()):
                files[str(file.relative_to(aside))] = StoredFile(size=file.stat().st_size, sha256=sha256_of(file))
                sync(file)
            for folder in (aside, *(path for path in aside.rglob("*") if path.is_dir())):
                sync(folder)
            aside.rename(data)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        # The record comes after its data, and the old data go after it: whenever this breaks off, what a record names
        # is whole. Data that no record names are all that a crash leaves.
        sync(data.parent)
        record = CheckpointRecord(
            run_id=run.run_id,
            kind=kind,
            name=name,
            data=data.name,
            base_model=run.base_model,
            lora=run.lora,
            optimizer_steps=run.steps_before + run.optimizer_steps,
            has_optimizer=kind == "weights",
            files=files,
            created_at=time.time(),
            expires_at=expires_at,
            user_metadata=user_metadata,
        )
        self._write_record(record)
        if old is not None:
            self._remove_data(old)
        return record

    def find(self, path: str) -> CheckpointRecord:
        """The checkpoint at a tinker:// path. Refusal 400, 404 (none, or expired) or 422 (damaged record)."""
        run_id, kind, name = parse_path(path)
        record = self._living(self.root / run_id / kind / f"{name}.json")
        if record is None:
            raise Refusal(404, f"there is no checkpoint {path}")
        return record

    def files(self, record: CheckpointRecord) -> Path:
        """The folder with the checkpoint's files, checked against the record. Refusal 422 if they differ, 404 or 410 if
        the checkpoint was deleted or overwritten since `record` was read."""
        folder = self.root / record.run_id / "data" / record.data
        for name, expected in record.files.items():
            file = folder / name
            if not file.is_file():
                if self.find(record.path).data != record.data:
                    raise Refusal(410, f"{record.path} was overwritten since: open it again")
                fault = f"its file {name} is missing"
            elif (size := file.stat().st_size) != expected.size:
                fault = f"{name} has {size} bytes instead of {expected.size}"
            # Whole, though it costs a read: weights with one changed byte would load, and train on as if nothing were.
            elif sha256_of(file) != expected.sha256:
                fault = f"the content of {name} has changed since it was saved"
            else:
                continue
            raise Refusal(422, f"checkpoint {record.path} is damaged: {fault}")
        return folder

    def checkpoints(self, run_id: str) -> list[CheckpointRecord]:
        """The run's checkpoints, newest first. Expired ones are removed, damaged records left out with a warning."""
        files = [file for kind in KIND_NAMES for file in (self.root / check_run_id(run_id) / kind).glob("*.json")]
        found = [record for file in files if (record := self._living(file, warn=True)) is not None]
        return sorted(found, key=lambda record: (-record.created_at, record.path))

    def all_checkpoints(self) -> list[CheckpointRecord]:
        """The checkpoints of all runs, those too whose time is over: nothing is removed, as `checkpoints` does."""
        files = (file for kind in KIND_NAMES for file in sorted(self.root.glob(f"*:train:*/{kind}/*.json")))
        return [record for file in files if (record := _stored(CheckpointRecord, file)) is not None]

    def set_expiry(self, record: CheckpointRecord, ttl_seconds: int | None) -> None:
        """Give the checkpoint a new time to live from now, or none. Refusal 400 if out of range."""
        self._write_record(record.model_copy(update={"expires_at": expiry(ttl_seconds)}))

    def set_public(self, record: CheckpointRecord, public: bool) -> None:
        """Mark the checkpoint as published or not; Refusal 409 if it already is."""
        if record.public == public:
            raise Refusal(409, f"{record.path} is already {'public' if public else 'private'}")
        self._write_record(record.model_copy(update={"public": public}))

    def delete(self, record: CheckpointRecord) -> None:
        """Remove the checkpoint: its record first, so that no record without files is ever seen."""
        self._record_file(record).unlink(missing_ok=True)
        self._remove_data(record)

    def sweep(self) -> None:
        """Remove expired checkpoints, and what crashed writers left behind more than a day ago."""
        for run in self.runs():
            self.checkpoints(run.run_id)
        # By age: a younger one may be what another server of this user is just writing.
        limit = time.time() - _LEFTOVER_AGE_S
        for leftover in (*self.root.glob(".tmp-*"), *self.root.glob("*:train:*/**/.tmp-*")):
            try:
                if leftover.stat().st_mtime < limit:
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            except FileNotFoundError:
                continue  # its writer, or another server's sweep, was faster

    def _record_file(self, record: CheckpointRecord) -> Path:
        return self.root / record.run_id / record.kind / f"{record.name}.json"

    def _write_record(self, record: CheckpointRecord) -> None:
        file = self._record_file(record)
        file.parent.mkdir(exist_ok=True)
        replace_text(file, record.model_dump_json(indent=1))

    def _living(self, file: Path, *, warn: bool = False) -> CheckpointRecord | None:
        record = _stored(CheckpointRecord, file, None if warn else f"the checkpoint record {file}")
        # On sight: an expired checkpoint must not be found between two sweeps.
        if record is not None and record.expired():
            self.delete(record)
            return None
        return record

    def _remove_data(self, record: CheckpointRecord) -> None:
        shutil.rmtree(self.root / record.run_id / "data" / record.data, ignore_errors=True)


def _stored(kind: type[R], file: Path, what: str | None = None) -> R | None:
    """The record in the file, None if it is not there (deleted meanwhile, say). A damaged one is a Refusal 422 about
    `what`; it is left out with a warning where that is None."""
    try:
        return kind.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        if what is not None:
            raise Refusal(422, f"{what} is damaged: {first}") from error
        logger.warning("%s is damaged and not listed: %s", file, first)
        return None
