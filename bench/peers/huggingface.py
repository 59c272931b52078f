"""Training with `transformers`: its own model in a plain PyTorch loop, padded to the longest sequence.

What it does as it comes: sdpa attention, logits at every position, torch's fused AdamW. Needs torch, transformers and
numpy only.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from bench.peers.protocol import LEARNING_RATE, serve

transformers.logging.disable_progress_bar()


def load(folder: Path) -> torch.nn.Module:
    """The masked-LM model of a Hugging Face folder, in fp32."""
    return transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)


def main(job: Path, precision: str) -> None:
    """`precision`: `fp32`, or `bf16` for bf16 autocast."""
    model = load(job)
    with np.load(job / "rows.npz", allow_pickle=False) as arrays:
        rows = {name: torch.from_numpy(array) for name, array in arrays.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            return model(**rows).loss

    def step() -> float:
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return value.item()

    with torch.no_grad():
        model.eval()
        first = loss().item()
    model.train()
    serve({"loss": first, "version": f"transformers {transformers.__version__}, torch {torch.__version__}"}, step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
