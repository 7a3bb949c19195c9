"""Which of the target's layers a draft starts from, and which share of the target's depth each of them replaces."""

from src.speculative.errors import ModelError


def depths(total: int, layers: int) -> list[int]:
    """After how many of `total` layers of the target each of the draft's should be: even shares of its depth.

    depths(30, 6) is [5, 10, 15, 20, 25, 30]. Raises ModelError if the draft is to have more layers than the target.
    """
    if layers > total:
        raise ModelError(
            f"params.yaml: key 'distill.layers': {layers} cannot be used; allowed: 1 to {total}, as the target has"
        )
    return [round((layer + 1) * total / layers) for layer in range(layers)]


def starts(total: int, layers: int) -> list[int]:
    """The layers of the target that the draft's begin as: the first of every share, and of the last share its last.

    starts(30, 6) is [0, 5, 10, 15, 20, 29]. The first layer knows the embedding, and the last one the head.
    """
    shares = depths(total, layers)
    first = [0, *shares[:-1]]
    return first if layers == 1 else [*first[:-1], total - 1]
