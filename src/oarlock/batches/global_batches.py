"""Global batches by step: (data set, seed, step) -> what a rank does in that step. No state, no exchange."""

import numpy as np
from numpy.typing import NDArray

from oarlock.batches.balance import assign
from oarlock.batches.batch import Batch, GlobalBatch
from oarlock.batches.masking import maskable_lengths, masking_rules, num_targets
from oarlock.batches.mixing import Purpose, hash_values
from oarlock.batches.pack import add_filler, pack_samples
from oarlock.batches.plan import StepPlan
from oarlock.config import BatchConfig, MaskingConfig
from oarlock.corpus import Dataset

LINEAR_ONLY = 2**31  # quadratic length for evaluation, where cells of equal tokens serve as well


class GlobalBatches:
    """The training batches of one rank."""

    def __init__(
        self,
        dataset: Dataset,
        batch: BatchConfig,
        masking: MaskingConfig,
        *,
        seed: int,
        quadratic: int,
        rank: int = 0,
        world_size: int = 1,
        num_microbatches: int = 1,
        divisor: int = 1,
    ) -> None:
        """`quadratic` is the length at which attention costs as much as the linear layers. There are at least
        `num_microbatches`, and `divisor` divides the tokens of each.

        Raises ValueError where the training split is empty, its longest sequence does not fit into `batch`, or its
        vocabulary has no ordinary token.
        """
        self.plan = StepPlan(dataset.train.lengths, batch, seed)
        self._split = dataset.train
        self._rules = masking_rules(dataset.manifest, masking)
        self._max_tokens = batch.max_tokens_per_microbatch
        self._seed = seed
        self._quadratic = quadratic
        self._rank = rank
        self._world_size = world_size
        self._num_microbatches, self._divisor = num_microbatches, divisor

    def build(self, step: int) -> GlobalBatch:
        """This rank's share of the global batch of `step` (from 1)."""
        taken = self.plan.samples(step)
        lengths_S = self._split.lengths[taken.samples_S].astype(np.int64)
        maskable_S = maskable_lengths(self._split, taken.samples_S, self._rules)
        total_targets = int(num_targets(maskable_S, self._rules.config).sum())
        cells = assign(lengths_S, self._world_size, self._max_tokens, self._quadratic, self._num_microbatches)
        mask_key = hash_values(self._seed, Purpose.TRAINING_MASKS, taken.epoch)
        dropout_key = hash_values(self._seed, Purpose.DROPOUT, step)
        microbatches = tuple(
            pack_samples(self._split, taken.samples_S[cell], self._rules, mask_key, total_targets, dropout_key)
            for cell in cells[self._rank]
        )
        return GlobalBatch(
            step=step,
            epoch=taken.epoch,
            microbatches=tuple(add_filler(batch, self._divisor) for batch in microbatches),
            num_sequences=len(lengths_S),
            num_tokens=int(lengths_S.sum()),
            num_targets=total_targets,
            imbalance=_imbalance(lengths_S, [cell for rank in cells for cell in rank]),
        )


def evaluation_batches(
    dataset: Dataset,
    masking: MaskingConfig,
    *,
    seed: int,
    max_tokens_per_microbatch: int,
    max_sequences: int | None,
    rank: int = 0,
    world_size: int = 1,
    num_microbatches: int = 1,
    divisor: int = 1,
) -> list[Batch]:
    """The first `max_sequences` validation sequences (None: all), masked the same way every time, as this rank's
    batches.

    `num_targets` of each is that of the whole evaluation set: a sum over all batches of all ranks, divided by it, is
    the same for any batch size and number of ranks. Every rank has as many batches; some may be empty.

    Raises ValueError where the validation split is empty, or a sequence is longer than `max_tokens_per_microbatch`.
    """
    split = dataset.validation
    if not len(split):
        raise ValueError("the validation split has no sequences; prepare with a larger validation share")
    rules = masking_rules(dataset.manifest, masking)
    samples_S = np.arange(len(split) if max_sequences is None else min(max_sequences, len(split)))
    total_targets = int(num_targets(maskable_lengths(split, samples_S, rules), masking).sum())
    cells = assign(split.lengths[samples_S], world_size, max_tokens_per_microbatch, LINEAR_ONLY, num_microbatches)
    mask_key = hash_values(seed, Purpose.EVALUATION_MASKS)
    batches = [pack_samples(split, samples_S[cell], rules, mask_key, total_targets, 0) for cell in cells[rank]]
    return [add_filler(batch, divisor) for batch in batches]


def _imbalance(lengths_S: NDArray[np.int64], cells: list[NDArray[np.int64]]) -> float:
    """Largest over mean number of tokens of a cell."""
    tokens = [int(lengths_S[cell].sum()) for cell in cells]
    return max(tokens) * len(tokens) / max(1, sum(tokens))
