"""Fixtures that several rooms share."""

from pathlib import Path

import pytest

from oarlock.testing.texts import prepare_text


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small prepared data set; read it only."""
    return prepare_text(tmp_path_factory.mktemp("corpus"))
