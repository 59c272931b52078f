"""What every configuration class shares."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable, validated value; a key that it does not know is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
