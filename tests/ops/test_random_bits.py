"""Dropout's decisions: their rate, their independence, and that nothing but their key decides them."""

import torch

from oarlock.ops.random_bits import head_keys, keep_, keep_bits, keep_scale, num_dropped, row_keys


def keys(num_rows: int, key: int = 1, site: int = 1, sample: int = 1) -> torch.Tensor:
    return row_keys(torch.tensor([key]), site, torch.full((num_rows,), sample), torch.arange(num_rows))


def keep_mask(keys_R: torch.Tensor, num_columns: int, probability: float) -> torch.Tensor:
    return keep_bits(keys_R, num_columns, probability) != 0


def test_rate_lies_within_binomial_bounds_in_every_lane_and_row() -> None:
    keep = keep_mask(keys(4000), 1000, 0.1).double()
    expected = 1 - num_dropped(0.1) / 32768
    sigma = (expected * (1 - expected)) ** 0.5
    assert abs(keep.mean() - expected) < 5 * sigma / 2000
    assert (keep.mean(0) - expected).abs().max() < 5 * sigma / 4000**0.5
    assert (keep.mean(1) - expected).abs().max() < 5.5 * sigma / 1000**0.5


def test_neighbours_are_independent() -> None:
    dropped = (~keep_mask(keys(2000), 1000, 0.5)).double() - 0.5
    pairs = {"rows": dropped[1:] * dropped[:-1], "columns": dropped[:, 1:] * dropped[:, :-1]}
    pairs["squares"] = pairs["rows"][:, 1:] * pairs["rows"][:, :-1] * 4
    pairs["lanes"] = dropped[:, 4:] * dropped[:, :-4]
    for name, product in pairs.items():
        assert abs(product.mean() * 4) < 5 / product.numel() ** 0.5, name


def test_every_part_of_the_key_matters() -> None:
    base = keep_mask(keys(64), 64, 0.5)
    for other in (keys(64, key=2), keys(64, site=2), keys(64, sample=2)):
        agreement = (keep_mask(other, 64, 0.5) == base).double().mean()
        assert abs(agreement - 0.5) < 0.05


def test_a_row_does_not_depend_on_the_others_or_on_the_width() -> None:
    all_rows = keys(500)
    whole = keep_mask(all_rows, 1000, 0.3)
    assert torch.equal(keep_mask(all_rows[123:130], 1000, 0.3), whole[123:130])
    assert torch.equal(keep_mask(all_rows, 333, 0.3), whole[:, :333])


def test_a_hundred_thousand_rows_have_a_hundred_thousand_keys() -> None:
    rows = torch.cat([keys(100, sample=sample) for sample in range(1000)])
    assert rows.unique().numel() == 100_000
    assert head_keys(rows[:10_000], 12).unique().numel() == 120_000


def test_scale_keeps_the_mean() -> None:
    for probability in (0.1, 0.25, 0.5):
        assert keep_scale(probability) * (1 - num_dropped(probability) / 32768) == 1.0


def test_keeping_is_exact_in_every_type() -> None:
    bits = keep_bits(keys(50), 30, 0.5)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(50, 30).to(dtype)
        assert torch.equal(keep_(x.clone(), bits), torch.where(bits != 0, x, 0))
