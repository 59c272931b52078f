"""The shape of an encoder, as a value."""

from typing import Literal

from pydantic import Field, model_validator

from oarlock.config.base import Frozen

ModelKind = Literal["bert", "roberta", "modernbert"]
VOCABULARY_MULTIPLE = 64


class ModelConfig(Frozen):
    """The shape of an encoder. Every field can be overridden on the command line as `--model.NAME`."""

    kind: ModelKind = "bert"
    """Architecture: which parts the encoder is made of."""
    vocab_size: int = Field(default=0, ge=0, le=2**24)
    """Number of token ids; 0 takes it from the data set's tokenizer."""
    hidden_size: int = Field(default=256, gt=0, le=2**16)
    """Width D of the residual stream."""
    num_layers: int = Field(default=4, gt=0, le=1024)
    """Number of Transformer layers."""
    num_heads: int = Field(default=4, gt=0)
    """Number H of attention heads; must divide hidden_size."""
    intermediate_size: int = Field(default=1024, gt=0, le=2**20)
    """Width of the feed-forward layer (for GeGLU: of each half)."""
    max_length: int = Field(default=512, gt=0, le=2**20)
    """Longest sequence in tokens, special tokens included; the size of the position table where there is one."""
    token_types: int = Field(default=2, ge=1)
    """Number of segment (token type) embeddings; used by BERT and RoBERTa."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout after the embeddings and on each residual branch."""
    attention_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on the attention probabilities."""
    norm_epsilon: float = Field(default=1e-12, gt=0.0)
    """Added to the variance in every LayerNorm."""
    initializer_range: float = Field(default=0.02, gt=0.0)
    """Standard deviation of the initial weights."""
    pooler: bool = False
    """BERT and RoBERTa: add the pooler (a dense layer with tanh on the first token), which a masked-LM loss does not
    train and an export leaves out."""
    local_window: int = Field(default=128, gt=0)
    """ModernBERT: width of the sliding window of a local layer; a token sees local_window / 2 on each side."""
    global_every: int = Field(default=3, ge=1)
    """ModernBERT: every n-th layer, from the first, attends to the whole sequence."""
    global_rope_theta: float = Field(default=160_000.0, gt=0.0)
    """ModernBERT: base of the rotary frequencies in global layers."""
    local_rope_theta: float = Field(default=10_000.0, gt=0.0)
    """ModernBERT: base of the rotary frequencies in local layers."""
    pad_id: int = Field(default=0, ge=0)
    """RoBERTa: the padding index, after which its positions start; training takes it from the data set's tokenizer."""
    ops: dict[str, str] = Field(default={})
    """Form of an operator where it should not be the device's own; as flag `--model.ops attention reference`."""

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}; change one of them"
            )
        head = self.hidden_size // self.num_heads
        if self.kind == "modernbert" and head % 2:
            raise ValueError(
                f"rotary positions need an even head size, but hidden_size {self.hidden_size} / num_heads "
                f"{self.num_heads} = {head}; change one of them"
            )
        if self.kind == "modernbert" and self.local_window % 2:
            raise ValueError(f"local_window {self.local_window} is odd; a token sees half of it on each side")
        if self.kind == "modernbert" and self.pooler:
            raise ValueError("modernbert has no pooler; leave pooler at False")
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding table: vocab_size rounded up, so that the output matrix has an efficient shape."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
