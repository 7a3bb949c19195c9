"""The `distill` block of params.yaml: what a person may set about training a draft."""

from pydantic import BaseModel, ConfigDict, Field


class DistillParams(BaseModel):
    """One training run. A field's description is what is allowed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    of: str = Field(description="a name from the catalogue `models`: the target to learn from")
    layers: int = Field(ge=1, description="how many of the target's layers the draft keeps, from 1")
    tokens: int = Field(ge=1000, description="how many tokens the target writes to learn from, from 1000")
    minutes: float = Field(gt=0, allow_inf_nan=False, description="how long to train once the data is there, above 0")
    seed: int = Field(ge=0, lt=2**63, description="a whole number from 0")
    draft_vocab: int = Field(ge=2, description="how many of the most frequent ids the trained head keeps, from 2")
