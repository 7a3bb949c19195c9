"""Files that a directory of weights may hold, and that belong to a model; no torch, so that commands start at once."""

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
COPIED = (".json", ".jinja", ".txt", ".model")  # config and tokenizer, beside the weights
