"""Fixtures that several test files use."""

import pytest
import torch


@pytest.fixture(scope="session")
def real():
    """A function from a name of the catalogue to its directory; what is missing or broken is fetched first."""
    from src.pipeline.fetch import MODELS, obtain
    from src.pipeline.params import load_params

    def directory(slug: str):
        if not (MODELS / slug / "config.json").is_file():
            obtain(load_params(), slug)
        return MODELS / slug

    return directory


@pytest.fixture(scope="session")
def real_pair(real):
    """(target, draft, tok) of the default pair in float32 on the CPU; fetched first where they are not there yet."""
    from src.pipeline.params import load_params
    from src.speculative import load_models

    params = load_params()
    return load_models(real(params.targets[0]), real(params.drafts[0]), dtype="float32")


@pytest.fixture(scope="module")
def one_thread():
    """Starting threads for rows of three numbers takes a hundred times as long as adding them up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
