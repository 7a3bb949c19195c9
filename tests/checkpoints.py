"""Tiny random models on disk, laid out as real ones are: safetensors, config, and a tokenizer with a chat template."""

from pathlib import Path

SPECIAL = ("<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = 256 + len(SPECIAL)  # ids of the tokenizer: a byte each, and the special ones


def save_tokenizer(folder: Path, swapped: bool = False) -> None:
    """A tokenizer of one byte a token; `swapped` exchanges two of its ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swapped:
        letters[40], letters[41] = letters[41], letters[40]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[1], chat_template=CHAT)
    fast.save_pretrained(folder)


def save_checkpoint(
    folder: Path, family: str = "llama", *, seed: int = 0, vocabulary: int = WORDS, swapped: bool = False, **config
) -> Path:
    """A random float32 checkpoint of that family in `folder`; `config` overrides fields of transformers' config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    # Wide initial weights, or all logits lie so close together that any rounding changes the likeliest token.
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3}
    sizes |= {"vocab_size": vocabulary, "tie_word_embeddings": True, "eos_token_id": WORDS - 1, "bos_token_id": None}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(sizes | config)))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # transformers starts them at zero, where nobody would miss them
                torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    save_tokenizer(folder, swapped)
    return Path(folder)
