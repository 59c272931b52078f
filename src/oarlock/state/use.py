"""What a trained model is used for: evaluation, export, filling in masks."""

from pathlib import Path
from typing import NamedTuple

from oarlock.batches import evaluation_batches
from oarlock.config import MaskingConfig
from oarlock.corpus import load_tokenizer, open_dataset
from oarlock.model import Exported, Guess, export_huggingface, fill_mask
from oarlock.state.trained import load_trained
from oarlock.step import evaluate

TOKENS_AT_ONCE = 8192


class Evaluated(NamedTuple):
    """An evaluation on a whole validation split, or its first sequences."""

    eval_loss: float
    """Mean cross entropy over the targets, in nats."""
    eval_accuracy: float
    """Share of the targets whose likeliest id is right."""
    num_targets: int
    unigram_baseline: float
    """Loss in nats of a model that only knows token frequencies."""


def evaluate_trained(source: str, data: str, max_sequences: int | None) -> Evaluated:
    """Evaluate the model of a run or Hugging Face folder on a data set's validation split, in fp32.

    A run's model meets the targets that its own evaluations had.

    Raises:
        ValueError: the data set was made with another vocabulary, or has longer sequences than the model reads.
    """
    if max_sequences is not None and max_sequences < 1:
        raise ValueError(f"evaluate on at least one sequence, not {max_sequences}")
    trained, dataset = load_trained(source), open_dataset(data)
    config, manifest = trained.model.config, dataset.manifest
    if manifest.vocab_size != config.vocab_size:
        raise ValueError(
            f"the model of {source} knows {config.vocab_size} token ids, the data set {data} {manifest.vocab_size}; "
            f"prepare the data with the model's tokenizer: --tokenizer {trained.tokenizer}"
        )
    if manifest.validation.longest > config.max_length:
        raise ValueError(
            f"the longest sequence of {data} has {manifest.validation.longest} tokens, the model reads at most "
            f"{config.max_length}; prepare the data with --max-length {config.max_length}"
        )
    masking, seed = (trained.run.masking, trained.run.seed) if trained.run else (MaskingConfig(), 0)
    batches = evaluation_batches(
        dataset,
        masking,
        seed=seed,
        max_tokens_per_microbatch=max(TOKENS_AT_ONCE, config.max_length),
        max_sequences=max_sequences,
    )
    loss, accuracy = evaluate(trained.model, batches)
    num_targets = sum(batch.target_ids_M.numel() for batch in batches)
    return Evaluated(loss.item(), accuracy.item(), num_targets, manifest.unigram_baseline)


def export_run(run: str, out: Path, step: int | None = None, overwrite: bool = False) -> Exported:
    """Write the model of a run folder as a Hugging Face folder, checked before it is there.

    Raises:
        ValueError: `run` is no run folder or has no such checkpoint, or `out` is not empty.
        RuntimeError: the exported folder's logits differ from the model's.
    """
    trained = load_trained(run, step)
    if trained.run is None:
        raise ValueError(f"{run} is a Hugging Face folder already; give a run folder")
    special = load_tokenizer(str(trained.tokenizer)).special
    facts = {
        "Steps": f"{trained.step:,} of {trained.run.steps:,}",
        "Parameters": f"{sum(parameter.numel() for parameter in trained.model.parameters()):,}",
        "Vocabulary": f"{trained.model.config.vocab_size:,}",
        "Longest sequence": f"{trained.model.config.max_length:,} tokens",
    }
    ids = {"pad": special.pad, "start": special.start, "end": special.end}
    return export_huggingface(trained.model, trained.tokenizer, ids, out, facts, overwrite)


def fill_mask_with(source: str, text: str, count: int) -> list[list[Guess]]:
    """Guesses of the model of a run or Hugging Face folder for each mask in `text`; `[MASK]` stands for its own mask.

    Raises:
        ValueError: there is no mask in the text, or the text is too long or no valid Unicode, or `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"the number of guesses must be at least 1, not {count}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text is not valid Unicode: {error}") from error
    trained = load_trained(source)
    loaded = load_tokenizer(str(trained.tokenizer))
    mask_token = loaded.tokenizer.id_to_token(loaded.special.mask)
    assert mask_token is not None
    return fill_mask(trained.model, loaded.tokenizer, text.replace("[MASK]", mask_token), mask_token, count)
