"""What a run's name means, and which names of new runs are in doubt."""

from pathlib import Path

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.run_names import doubt, near_runs, record_path, run_path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default root in a home of the test's own, with some runs; the working directory has one too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    root = tmp_path / "code-rl-logs"
    for run in (root / "2026_11_21-10_00_00", root / "run-60ed7cb0", root / "exp1", root / "mathematics", Path("here")):
        (run / "steps").mkdir(parents=True)
    return root


def test_a_name_lies_below_the_root_and_a_path_where_it_says(root: Path) -> None:
    assert run_path("exp1") == root / "exp1"
    assert run_path("made-up") == root / "made-up"
    assert run_path("here") == Path("here")
    assert run_path("./exp1") == Path("exp1")
    assert run_path("~/code-rl-logs/exp1") == root / "exp1"
    (root / "here" / "steps").mkdir(parents=True)
    assert run_path("here") == root / "here"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("2026_11_21-10_00_01", "did you mean 2026_11_21-10_00_00"),
        ("2026_01_01-10_00_00-2", "there is no run in"),
        ("run-60ed7cb1", "did you mean run-60ed7cb0"),
        ("run-ffffffff", "there is no run in"),
        ("mathmatics", "did you mean mathematics?"),
        ("Mathematics", "did you mean mathematics?"),
    ],
)
def test_a_name_like_those_of_runs_is_in_doubt(root: Path, name: str, near: str) -> None:
    assert near in str(doubt(root / name))
    elsewhere = doubt(root.parent / "elsewhere" / name)  # where nothing is: the runs below the root are near
    assert near in str(elsewhere)


@pytest.mark.parametrize("name", ["exp2", "exp1-long", "exp10", "mathematics.b", "mathematics-v2", "physics"])
def test_a_name_that_goes_on_with_a_series_or_is_another_one_is_not(root: Path, name: str) -> None:
    assert doubt(root / name) is None


def test_a_record_is_a_run_a_pool_or_a_folder_and_else_the_near_ones_are_named(root: Path) -> None:
    assert record_path("exp1") == root / "exp1"
    assert record_path("here") == Path("here")
    assert record_path(str(root)) == root
    assert record_path(".") == Path()
    assert record_path("log_path=~/code-rl-logs/exp1") == record_path("log_path=exp1") == root / "exp1"
    with pytest.raises(ConfigError, match=r"there is no run in .* yet"):
        record_path("latest")
    (root / "exp1" / "config.json").touch()
    assert record_path("latest") == record_path(str(root / "exp1" / "config.json")) == root / "exp1"
    with pytest.raises(ConfigError, match=r"no run and no pool called mathematic: did you mean mathematics\?"):
        record_path("mathematic")
    with pytest.raises(ConfigError, match=r"there is no directory .*/code-rl-logs/exp: did you mean exp1\?"):
        record_path(str(root / "exp"))


def test_a_pools_name_is_found(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coderl_tasks.journal.run_names.POOLS", tmp_path / "pools")
    (tmp_path / "pools" / "easy-ones" / "shards").mkdir(parents=True)
    assert record_path("easy-ones") == tmp_path / "pools" / "easy-ones"
    with pytest.raises(ConfigError, match=r"did you mean easy-ones\?"):
        record_path("eazy-ones")
    assert near_runs(Path("eazy-ones")) == []  # a pool is no run
