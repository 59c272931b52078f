"""Fixtures that several rooms share."""

from pathlib import Path

import pytest

from oarlock.launch import prepare_process

prepare_process()  # before torch is loaded, as the command line does

from oarlock.testing.texts import prepare_text  # noqa: E402


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small prepared data set; read it only."""
    return prepare_text(tmp_path_factory.mktemp("corpus"))
