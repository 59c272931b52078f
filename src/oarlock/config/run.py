"""The configuration of one training run."""

from typing import Literal

from pydantic import Field, model_validator

from oarlock.config.base import Frozen
from oarlock.config.model import ModelConfig
from oarlock.config.plan import Plan


class BatchConfig(Frozen):
    """How a global batch is made."""

    sequences: int = Field(default=256, gt=0, le=2**30)
    """Sequences in a global batch (one optimizer step), where `tokens` is not given."""
    tokens: int | None = Field(default=None, gt=0, le=2**40)
    """Useful tokens in a global batch, to within one sequence, instead of a number of sequences."""
    max_tokens_per_microbatch: int = Field(default=8192, gt=0, le=2**30)
    """Bounds memory: a global batch is cut into as many micro-batches as this asks."""
    workers: int | None = Field(default=None, ge=0, le=256)
    """Processes that build batches; by default 2 with a GPU, 0 on a CPU, where building costs under 1 % of a step."""


class MaskingConfig(Frozen):
    """Masked-LM targets, by BERT's procedure (Devlin et al., 2019, section 3.1)."""

    rate: float = Field(default=0.15, gt=0.0, le=1.0)
    """Share of the tokens of a sequence (special tokens aside) that become targets; at least one."""
    mask_share: float = Field(default=0.8, ge=0.0, le=1.0)
    """Share of the targets whose input is replaced by the mask token."""
    random_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the targets whose input is replaced by a random ordinary token; the rest stay as they are."""

    @model_validator(mode="after")
    def _shares_fit(self) -> "MaskingConfig":
        if self.mask_share + self.random_share > 1.0:
            raise ValueError(f"mask_share {self.mask_share} + random_share {self.random_share} is more than 1")
        return self


class OptimizerConfig(Frozen):
    """The optimizer. Biases and norms have no weight decay (and, for LAMB, no trust ratio)."""

    name: Literal["adamw", "stableadamw", "lamb", "muon"] = "adamw"
    """Muon updates the matrices of the layers and leaves the rest to AdamW."""
    learning_rate: float = Field(default=1e-3, gt=0.0)
    """Peak learning rate, after warm-up."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the first moment."""
    beta2: float = Field(default=0.98, ge=0.0, lt=1.0)
    """Decay of the second moment."""
    epsilon: float = Field(default=1e-6, gt=0.0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    """Decoupled weight decay."""
    clip_norm: float | None = Field(default=1.0, gt=0.0)
    """Largest global gradient norm; None does not clip."""
    muon_learning_rate: float = Field(default=0.02, gt=0.0)
    """Peak learning rate of the matrices under Muon; follows the same schedule."""
    muon_momentum: float = Field(default=0.95, ge=0.0, lt=1.0)
    """Muon's momentum."""


class ScheduleConfig(Frozen):
    """The learning rate as a function of the optimizer step."""

    kind: Literal["linear", "cosine", "polynomial", "wsd", "constant"] = "linear"
    """Shape after the warm-up; `wsd` is warmup-stable-decay."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps of linear warm-up; by default warmup_share of the run."""
    warmup_share: float = Field(default=0.06, ge=0.0, lt=1.0)
    """Share of the run that is warm-up, where warmup_steps is not given."""
    power: float = Field(default=1.0, gt=0.0)
    """Exponent of `polynomial`."""
    decay_share: float = Field(default=0.2, gt=0.0, le=1.0)
    """Share of the run over which `wsd` decays."""
    final_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Learning rate that the schedule runs to, as a share of the peak."""


class CheckpointConfig(Frozen):
    """When the state of a run is saved, and how much is kept."""

    every: int = Field(default=500, gt=0)
    """Steps between checkpoints; the last step is always saved."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest complete checkpoints stay."""


class EvaluationConfig(Frozen):
    """When the model is evaluated on the validation split."""

    every: int = Field(default=250, gt=0)
    """Steps between evaluations; the last step is always evaluated."""
    max_sequences: int | None = Field(default=2048, gt=0)
    """Evaluate on the first so many validation sequences; None takes all."""


class RunConfig(Frozen):
    """A whole training run: everything that its result depends on."""

    data: str
    """Folder (or URL) that `oarlock prepare` wrote."""
    out: str
    """Folder (or URL) of the run: checkpoints, metrics, report."""
    steps: int = Field(gt=0, le=2**40)
    """Optimizer steps of the whole run."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Everything random follows from it: initial weights, order, masks, dropout."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """bf16 computes in bfloat16 with fp32 master weights."""
    init_from: str | None = None
    """Hugging Face folder to take the initial weights from."""
    log_every: int = Field(default=10, gt=0)
    """Steps between lines of metrics.jsonl."""
    model: ModelConfig
    """Shape of the encoder."""
    batch: BatchConfig = BatchConfig()
    """Global batch."""
    masking: MaskingConfig = MaskingConfig()
    """Masked-LM targets."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation."""
    plan: Plan = Plan()
    """How the work is laid over processes."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        if self.batch.max_tokens_per_microbatch < self.model.max_length:
            raise ValueError(
                f"batch.max_tokens_per_microbatch {self.batch.max_tokens_per_microbatch} cannot hold one sequence of "
                f"model.max_length {self.model.max_length}; raise the one or lower the other"
            )
        if self.schedule.warmup_steps is not None and self.schedule.warmup_steps >= self.steps:
            raise ValueError(
                f"schedule.warmup_steps {self.schedule.warmup_steps} must be fewer than steps {self.steps}"
            )
        plan, model = self.plan, self.model
        cut = plan.tensor if plan.tensor > 1 else plan.shard if plan.shard_stage > 0 else 1
        if cut > 1 and self.optimizer.name not in ("adamw", "lamb"):
            raise ValueError(
                f"optimizer.name {self.optimizer.name} needs whole tensors, which the plan shares out among {cut} "
                "processes; take adamw or lamb, or replicas only"
            )
        for name in ("num_heads", "intermediate_size"):
            if getattr(model, name) % plan.tensor:
                raise ValueError(f"plan.tensor {plan.tensor} does not divide model.{name} {getattr(model, name)}")
        plan.spans(model.num_layers)
        return self
