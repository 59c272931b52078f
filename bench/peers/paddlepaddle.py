"""Training with PaddlePaddle's own layers, padded to the longest sequence, in fp32 as it comes.

`paddle.nn.TransformerEncoder` in dynamic mode, under BERT's embeddings and head; logits at every position, Paddle's
AdamW and its clipping by the global norm. Needs paddlepaddle, numpy and safetensors only.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from bench.peers.protocol import LEARNING_RATE, serve
from paddle import nn
from safetensors.numpy import load_file

# Paddle's name of a layer's part -> the folder's.
LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


class Bert(nn.Layer):
    """BERT with a masked-LM head tied to the word embeddings."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, epsilon, dropout = config["hidden_size"], config["layer_norm_eps"], config["hidden_dropout_prob"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.segments = nn.Embedding(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, epsilon)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width,
            config["num_attention_heads"],
            config["intermediate_size"],
            dropout=dropout,
            activation="gelu",
            attn_dropout=config["attention_probs_dropout_prob"],
            act_dropout=0.0,
            layer_norm_eps=epsilon,
        )
        self.encoder = nn.TransformerEncoder(layer, config["num_hidden_layers"])
        self.dense = nn.Linear(width, width)
        self.dense_norm = nn.LayerNorm(width, epsilon)
        self.bias = self.create_parameter([config["vocab_size"]], is_bias=True)

    def forward(self, input_ids: paddle.Tensor, attention_mask: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        """Mean cross entropy over the positions that have a label."""
        embedded = self.words(input_ids) + self.positions(paddle.arange(input_ids.shape[1]))
        embedded = embedded + self.segments(paddle.zeros_like(input_ids))
        mask = attention_mask.astype("bool").unsqueeze([1, 2])
        hidden = self.encoder(self.dropout(self.norm(embedded)), mask)
        hidden = self.dense_norm(nn.functional.gelu(self.dense(hidden)))
        logits = paddle.matmul(hidden, self.words.weight, transpose_y=True) + self.bias
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        return loss / (labels >= 0).sum()  # its own mean divides by all positions where the ignored label is negative


def weights(folder: dict[str, np.ndarray], num_layers: int) -> dict[str, np.ndarray]:
    """The weights of a Hugging Face folder under Paddle's names; Paddle keeps a linear layer's matrix transposed."""
    names = {
        f"encoder.layers.{i}.{a}": f"bert.encoder.layer.{i}.{b}" for i in range(num_layers) for a, b in LAYER.items()
    }
    names |= {"norm": "bert.embeddings.LayerNorm"}
    names |= {"dense": "cls.predictions.transform.dense", "dense_norm": "cls.predictions.transform.LayerNorm"}
    found = {
        f"{ours}.{leaf}": folder[f"{theirs}.{leaf}"].T for ours, theirs in names.items() for leaf in ("weight", "bias")
    }
    for ours, theirs in (("words", "word"), ("positions", "position"), ("segments", "token_type")):
        found[f"{ours}.weight"] = folder[f"bert.embeddings.{theirs}_embeddings.weight"]
    return found | {"bias": folder["cls.predictions.bias"]}


def main(job: Path) -> None:
    config = json.loads((job / "config.json").read_text())
    model = Bert(config)
    missing, unexpected = model.set_state_dict(
        weights(load_file(job / "model.safetensors"), config["num_hidden_layers"])
    )
    if missing or unexpected:
        raise SystemExit(f"not the same weights: missing {missing}, unexpected {unexpected}")
    with np.load(job / "rows.npz", allow_pickle=False) as arrays:
        rows = {name: paddle.to_tensor(array) for name, array in arrays.items()}
    optimizer = paddle.optimizer.AdamW(
        LEARNING_RATE, parameters=model.parameters(), weight_decay=0.01, grad_clip=nn.ClipGradByGlobalNorm(1.0)
    )

    def step() -> float:
        loss = model(**rows)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    with paddle.no_grad():
        model.eval()
        first = float(model(**rows))
    model.train()
    serve({"loss": first, "version": f"paddlepaddle {paddle.__version__}"}, step)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
