"""Where raw rows come from: a data set on the hub (downloaded once, at its revision) or in a folder, or one file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from coderl_tasks.errors import DataError
from coderl_tasks.paths import MANIFEST_FILE, POOL_FILE, POOLS, find_local, known_sha256
from coderl_tasks.problems import raw_files
from coderl_tasks.problems.packages import rows_file
from coderl_tasks.problems.problem import TEST_SPLITS, TRAIN_SPLITS
from coderl_tasks.problems.raw_files import RawFile, RawRow, Segment, format_of, unreadable
from coderl_tasks.settings import HUB_DATASET
from coderl_tasks.settings.flow_settings import HUB_GSM8K

Role = Literal["train", "test"]
# The hub's rows may change; the same settings have to mean the same rows.
PINNED_REVISIONS = {HUB_DATASET: "177913a7bd43791646ef6a43645caa3c871ab3db"}
MAX_SPLIT_CHARS = 200


class NoSplitsError(DataError):
    """A source has nothing on the side that was asked for."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """One split of a source: its files, in order. With `named_by_row` a row's own column `split`, if any, says which
    split it is in, and `only` the splits that are wanted of these (None: all)."""

    split: str
    files: tuple[RawFile, ...]
    named_by_row: bool = False
    only: tuple[str, ...] | None = None

    def rows(self) -> Iterator[RawRow]:
        """All rows, file by file, numbered through. Raises DataError if one cannot be read."""
        number = 0
        for file in self.files:
            for row in self.read(raw_files.whole_file(file, number), raw_files.MAX_ROW_BYTES, None):
                number = row.source_row + 1
                yield row

    def read(self, segment: Segment, max_row_bytes: int, scratch: Path | None) -> Iterator[RawRow]:
        """The rows of one segment of one of the files (see `read_segment`)."""
        rows = raw_files.read_segment(segment, self.split, max_row_bytes=max_row_bytes, scratch=scratch)
        if not self.named_by_row:
            return rows
        # No loop: its variable would hold each row, which may be 200 MB, until the next.
        return filter(lambda row: self.only is None or row.split in self.only, map(_named, rows))


def open_source(source: str, splits: Sequence[str] | None, role: Role) -> list[RowSource]:
    """The splits of `source`, each with its files, whose rows are not read yet.

    A file, or a pool's folder or name, is one RowSource; a row's split is its column `split`, or else the file's name,
    and `splits` selects rows by it. Any other source is a data set for the library `datasets`, whose splits are its
    configs (such as taco) with their files for the `role`: those that `splits` names, else the ones of TRAIN_SPLITS or
    TEST_SPLITS that exist, else all. Raises DataError, and NoSplitsError if none was named and none has such files.
    """
    path = find_source(source)
    if path is not None and path.is_file():
        only = None if splits is None else tuple(splits)
        file = raw_file(str(path), path.parent, str(path))
        split = path.stem if file.compression is None else Path(path.stem).stem  # without .jsonl.gz
        return [RowSource(split, (file,), named_by_row=True, only=only)]
    if path is None and not may_be_on_the_hub(source):
        raise DataError(f"{source}: no such file or folder.")
    if row_sources := _of_data_set(source, path, splits, role):
        return row_sources
    hint = ""
    if path is not None:  # a folder here, whose files may have other names than `datasets` looks for
        files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if format_of(file) is not None)
        listed = ", ".join(files[:5]) + (", ..." if len(files) > 5 else "")
        hint = f" It has {listed}: one file, by its path, is a data set, too."
    raise NoSplitsError(f"{source} has no {role} split.{hint}")


def files_read(source: str, role: Role) -> list[str | None]:
    """What tells whether the rows are the same: the hashes of files on this machine, the hub's revision."""
    if find_source(source) is None and may_be_on_the_hub(source):
        return [PINNED_REVISIONS.get(source)]
    try:
        return [known_sha256(file.path) for split in open_source(source, None, role) for file in split.files]
    except NoSplitsError:
        if role == "train":
            raise
        return []


def find_source(source: str) -> Path | None:
    """The file or folder on this machine that `source` means: of a pool or of packages, the file of its rows."""
    path = find_local(source) or find_local(str(POOLS / source))
    if path is not None and (path / MANIFEST_FILE).is_file() and (path / POOL_FILE).is_file():
        return path / POOL_FILE
    if path is not None and path.is_dir():
        return rows_file(path) or path
    return path


def may_be_on_the_hub(source: str) -> bool:
    """Whether `source` can be the name of a hub data set: it does not look like a path."""
    return format_of(Path(source)) is None and not source.startswith(("/", ".", "~"))


def is_file(source: str) -> bool:
    """Whether `source` is one file, which has no other side."""
    path = find_source(source)
    return path is not None and path.is_file()


def _of_data_set(source: str, path: Path | None, splits: Sequence[str] | None, role: Role) -> list[RowSource]:
    """The configs that have the side `role`, as `datasets` finds them in the folder `path` or on the hub."""
    from datasets import get_dataset_config_names, load_dataset_builder

    location, revision = source if path is None else str(path), PINNED_REVISIONS.get(source)
    usual: tuple[str, ...] = TRAIN_SPLITS if role == "train" else TEST_SPLITS
    if source == HUB_GSM8K:
        usual = ("main",)  # its other config has the same problems, with other answers
    try:
        available = get_dataset_config_names(location, revision=revision)
        if missing := [name for name in splits or () if name not in available]:
            raise DataError(f"{source} has no split {', '.join(missing)}; there are: {', '.join(available)}.")
        names = [name for name in usual if name in available] or available if splits is None else splits
        files = {
            name: load_dataset_builder(location, name, revision=revision).config.data_files or {} for name in names
        }
    except DataError:
        raise
    except Exception as error:  # the hub client's, the file system's and the data set's own errors have no common base
        raise unreadable(source, error) from error
    lacking = [name for name in files if not files[name].get(role)]
    if splits is not None and lacking:
        raise DataError(f"{source} has no {role} files in its split {', '.join(lacking)}.")
    return [
        RowSource(name, tuple(raw_file(source, path, address) for address in files[name][role]))
        for name in files
        if name not in lacking
    ]


def raw_file(source: str, folder: Path | None, address: str) -> RawFile:
    """The file at `address`: a path below `folder`, or without a `folder` a hub address, which is downloaded unless it
    is cached. Raises DataError, which names `source`, for an unknown format or a failed download."""
    file_format, name = format_of(Path(address)), Path(address).name
    if file_format is None:
        raise DataError(f"{source}: the name of {name} does not end as those that are read: {raw_files.READ}")
    if folder is not None:
        path = Path(address)
        return RawFile(path, path.relative_to(folder).as_posix(), file_format)
    from huggingface_hub import HfFileSystem, hf_hub_download
    from huggingface_hub.hf_file_system import HfFileSystemResolvedRepositoryPath

    try:
        place = HfFileSystem().resolve_path(address)
        if not isinstance(place, HfFileSystemResolvedRepositoryPath):  # a bucket
            raise DataError(f"{source}: {address} is not in a repository.")
        local = hf_hub_download(place.repo_id, place.path_in_repo, repo_type=place.repo_type, revision=place.revision)
    except DataError:
        raise
    except Exception as error:  # the hub client's errors have no common base
        raise unreadable(f"{source} ({address})", error) from error
    return RawFile(Path(local), place.path_in_repo, file_format)


def _named(row: RawRow) -> RawRow:
    """`row` in the split that its own column `split` names, if that can be a split's name."""
    name = row.values.get("split") if isinstance(row.values, dict) else None
    if isinstance(name, str) and name.isprintable() and name.strip() and len(name) <= MAX_SPLIT_CHARS:
        return replace(row, split=name)
    return row
