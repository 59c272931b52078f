"""Fixtures that several rooms share."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # before torch is loaded, as the command line does

from oarlock.testing.texts import prepare_text


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small prepared data set; read it only."""
    return prepare_text(tmp_path_factory.mktemp("corpus"))
