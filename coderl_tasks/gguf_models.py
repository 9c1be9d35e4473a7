"""A GGUF file as the model folder that everything else here loads: its weights dequantised to float32, its tokenizer
with the chat template, its configuration. Made once per content of a file, below `coderl_home()`.

1. The conversion is a process of its own (`python -m coderl_tasks.gguf_models FILE FOLDER`): it needs PyTorch and twice
   the weights' memory, which the command or the server that asked for it would keep.
2. A folder has its name only when it is complete and on disk. A lock makes the second of two processes wait for the
   first instead of repeating it. The process that converts holds it too, should it outlive who asked for it.
3. The names of modules and whether the embeddings are tied are transformers': they are those of the model on the Hub.
   The weights are not, where the file is quantised: they differ from the Hub's by what that rounded away.
4. Not covered: what transformers cannot read of the format (it names the architecture), and files in several parts.
"""

import copy
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import coderl_home, known_sha256, private_folder

MAGIC = b"GGUF"
NEEDED = ("gguf", "torch", "safetensors", "accelerate")
"""Packages without which no file is converted."""


def models_folder() -> Path:
    """Where the folders that were made of GGUF files are."""
    return (coderl_home() / "models").resolve()  # as `find_local` has it, for who names a folder in it


def folder_for(file: Path) -> Path:
    """The folder that the GGUF file `file` is converted into: another one for another content."""
    return models_folder() / f"{file.stem}-{known_sha256(file)[:12]}"


def converted(file: Path) -> Path:
    """The model folder of the GGUF file `file`, made now if it is not there yet. Raises ConfigError for a file that is
    none, is damaged or cannot be read by transformers, where a package is missing, and where the disk is full."""
    folder = folder_for(file)
    if folder.is_dir():
        return folder
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise ConfigError(f"{file} is not a GGUF file: its first bytes are not {MAGIC.decode()}")
    # The path's own finder: commands that do not compute hide PyTorch from transformers (`lean_start`).
    if missing := [package for package in NEEDED if PathFinder.find_spec(package) is None]:
        raise ConfigError(f"{file} cannot be read without {', '.join(missing)}: pip install 'coderl[local,smollm2]'")
    private_folder(models_folder())
    with _locked() as lock:
        if not folder.is_dir():  # another process may have made it meanwhile
            _convert_in_process(file, folder, lock)
    return folder


def remove(folder: Path) -> bool:
    """Removes a converted model, or what a conversion left; False while a file is being converted."""
    try:
        with _locked(fcntl.LOCK_NB):
            gone = folder.with_name(f".{folder.name.lstrip('.')}.removed")
            folder.rename(gone)  # so that no half of a folder has its name
            shutil.rmtree(gone)
            return True
    except BlockingIOError:
        return False


@contextmanager
def _locked(how: int = 0) -> Iterator[int]:
    """Holds the lock of all conversions, whose descriptor it yields."""
    with (models_folder() / ".lock").open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | how)
        yield opened.fileno()


def _convert_in_process(file: Path, folder: Path, lock: int) -> None:
    """Converts the file in a child process, which inherits the lock's descriptor: the lock outlives this process."""
    part, size = folder.with_name(f".{folder.name}.part"), f"{file.stat().st_size / 1e6:,.0f} MB"
    shutil.rmtree(part, ignore_errors=True)  # left by a conversion that was killed
    # To stderr: what a command prints on stdout may be read by a program.
    print(f"converting {file.name} ({size}) into a model folder; it is done once", file=sys.stderr, flush=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "coderl_tasks.gguf_models", str(file), str(part)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, pass_fds=[lock])
        if done.returncode != 0:
            # The program prints the reason on stdout alone; libraries write to stderr.
            reason = done.stdout.strip() or (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            if done.returncode < 0:
                reason = f"its process was ended by signal {-done.returncode} (9: perhaps for want of memory)"
            raise ConfigError(f"{file} cannot be converted into a model folder: {reason}")
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    took = f"{time.monotonic() - started:.0f} s"
    print(f"converted in {took}: {folder} ({megabytes:,.0f} MB)", file=sys.stderr, flush=True)


def convert(file: Path, folder: Path) -> None:
    """Writes the model in the GGUF file `file` to the new `folder`: float32 safetensors, configuration, tokenizer.
    Raises whatever the readers of the format do, ValueError if weights are missing, and OSError if the disk is full."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    source: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    how: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True, **source}
    read: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), **how)
    loaded, loading_info = read
    if missing := sorted(loading_info["missing_keys"]):  # transformers would initialise them at random
        raise ValueError(f"it lacks the weights {missing[0]} and {len(missing) - 1} more")
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **source)
    # transformers saves no model read from a quantised file, but a model that has the same weights.
    config = copy.deepcopy(loaded.config)
    del config.quantization_config
    with torch.device("meta"):  # without memory of its own: `assign` gives it the weights of `loaded`
        plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    if plain.generation_config.eos_token_id is None:
        plain.generation_config.eos_token_id = tokenizer.eos_token_id
    tokenizer.model_max_length = config.max_position_embeddings  # a GGUF tokenizer states none
    needed = 4 * plain.num_parameters()  # bytes in float32
    private_folder(folder)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise OSError(f"{needed / 1e6:,.0f} MB are needed in {folder.parent}, and {free / 1e6:,.0f} MB are free")
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in (*folder.iterdir(), folder):
        # The caller gives the folder its name next. A power cut must not leave empty files under that name.
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # the file is of others: what its readers raise has no common base
        words = (str(error).strip().splitlines() or [""])[0]
        print(f"{type(error).__name__}: {words}" if words else type(error).__name__)
        sys.exit(1)
