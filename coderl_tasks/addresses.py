"""Addresses of files that several machines reach: a path, file://, s3:// or any other that fsspec knows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coderl_tasks.errors import CoderlError, ConfigError, DataError, InfraError

if TYPE_CHECKING:  # it takes a third of a second to import, and few commands need it
    from fsspec import AbstractFileSystem

OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}


def filesystem(address: str) -> "tuple[AbstractFileSystem, str]":
    """The file system of an address and the path in it. ConfigError for one that cannot be used here."""
    from fsspec.core import url_to_fs

    with explained(address):
        try:
            fs, path = url_to_fs(address)
        except ValueError as error:  # no such protocol
            raise ConfigError(f"{address}: {error}") from error
        return fs, str(path)


def local_path(address: str) -> Path | None:
    """The path of an address on this machine's own file system, None for any other."""
    from fsspec.implementations.local import LocalFileSystem

    fs, path = filesystem(address)
    return Path(path) if isinstance(fs, LocalFileSystem) else None


def joined(address: str, *names: str) -> str:
    """The address of `names` below `address`."""
    return "/".join((address.rstrip("/"), *names))


def make_folder_at(fs: "AbstractFileSystem", path: str) -> None:
    """Make the folder `path`. Not in an object store, where that may make a bucket of a misspelled name."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else {*fs.protocol}
    if not protocols & OBJECT_STORES:
        fs.makedirs(path, exist_ok=True)


@contextmanager
def explained(address: str) -> Iterator[None]:
    """Converts a file system's errors in the block to one line about `address`: ConfigError for a missing package or
    bad credentials, DataError for a missing file, InfraError for a service that fails. Other errors pass unchanged."""
    try:
        yield
    except CoderlError:  # raised in the block, with words of its own
        raise
    except ImportError as error:  # fsspec finds no package for the protocol
        needed = "the package s3fs: pip install 'coderl[s3]'" if address.startswith(("s3:", "s3a:")) else str(error)
        raise ConfigError(f"{address} needs {needed}") from error
    except FileNotFoundError as error:
        raise DataError(f"{address}: there is no such file") from error
    except PermissionError as error:
        raise ConfigError(f"{address}: access is refused ({error}): check the credentials") from error
    except OSError as error:
        raise InfraError(f"{address}: {error}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "botocore":  # by name: the package is optional
            raise
        raise ConfigError(f"{address}: {error}") from error  # S3's: no credentials, no region, a malformed name
