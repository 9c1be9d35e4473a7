"""Paths and addresses of other file systems."""

import sys
from pathlib import Path

import pytest
from fsspec.registry import _registry

from coderl_tasks.addresses import explained, filesystem, joined, local_path
from coderl_tasks.errors import ConfigError, InfraError


def test_local_addresses_are_paths(tmp_path: Path) -> None:
    assert local_path(str(tmp_path)) == local_path(f"file://{tmp_path}") == tmp_path
    assert local_path("memory://x") is None
    assert joined("s3://bucket/name/", "shards", "0001") == "s3://bucket/name/shards/0001"


def test_s3_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # as if it were not installed, and had not been used
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"s3://bucket/x needs the package s3fs: pip install 'coderl\[s3\]'"):
        filesystem("s3://bucket/x")


def test_a_failing_service_can_be_retried_and_refused_access_cannot() -> None:
    with pytest.raises(InfraError, match="s3://b: reset"), explained("s3://b"):
        raise ConnectionResetError("reset")
    with pytest.raises(ConfigError, match="check the credentials"), explained("s3://b"):
        raise PermissionError("Access Denied")
