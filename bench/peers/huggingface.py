"""Training with `transformers`: its own model in a plain PyTorch loop."""

from pathlib import Path

import torch
import transformers

transformers.logging.disable_progress_bar()


def load(folder: Path) -> torch.nn.Module:
    """The masked-LM model of a Hugging Face folder, in fp32, with the attention that it would choose itself."""
    return transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
