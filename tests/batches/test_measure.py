"""The figures of `oarlock bench data`."""

import pytest

from oarlock.batches.measure import measure_loader
from oarlock.testing.datasets import toy_dataset


@pytest.mark.parametrize("workers", [0, 1])
def test_figures(workers):
    figures = measure_loader(workers, dataset=toy_dataset(2 * 448), steps=6)
    assert figures["workers"] == workers
    assert figures["useful_tokens_per_second"] > 0
    assert figures["useful_tokens_per_second"] / figures["batches_per_second"] == pytest.approx(448 * 31.5, rel=0.05)
    assert 1 <= figures["imbalance"] < 1.1
