"""A tiny language model whose answer is known: after each letter it says the next one of the
alphabet.

Made on the spot with the image's own torch, transformers and tokenizers, so that no model is
fetched. A token is a character; each has an axis of its own in the hidden state, on which the
output layer reads the character that follows. The layers between are those of a Llama with small
random weights: they are computed, and change no answer as long as they are computed right.
"""

from __future__ import annotations

from typing import Any

CIRCLE = "abcdefghijklm\nnopqrstuvwxyz "  # servers hold a stream's text back until a word ends
CLIENTS = 11  # more ask what others ask
TOKENS = 30  # of each answer: once around, and no white space at its ends
VOCABULARY, HIDDEN, HEADS, LAYERS = 320, 512, 8, 2
NOISE = (
    0.005  # of the random weights: their part of a hidden state stays far below the token's own 1
)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_prompt(number: int) -> str:
    """The prompt of a client, by its NUMBER: it ends with a letter of its own."""
    return f"hpcstack asks client {number}: {CIRCLE[number % CLIENTS]}"


def expect_answer(number: int) -> str:
    """What the model says to `make_prompt(NUMBER)` in TOKENS tokens, each the likeliest."""
    return "".join(CIRCLE[(number % CLIENTS + step) % len(CIRCLE)] for step in range(1, TOKENS + 1))


def make_alphabet_model(folder: str) -> None:
    """The model and its tokenizer as files of Hugging Face's form in FOLDER, 9 MB.

    ImportError without transformers.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    words = _vocabulary()
    config: Any = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=NOISE,
        tie_word_embeddings=False,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
        model.lm_head.weight.zero_()
        for token in range(VOCABULARY):
            model.model.embed_tokens.weight[token, token] = 1.0
        for one, after in zip(CIRCLE, CIRCLE[1:] + CIRCLE[0], strict=True):
            model.lm_head.weight[words[spell_byte(after)], words[spell_byte(one)]] = 1.0
    model.to(torch.bfloat16).save_pretrained(folder)
    make_tokenizer(words).save_pretrained(folder)


def _vocabulary() -> dict[str, int]:
    """{character as ByteLevel writes it: token}; 0 ends a text."""
    from tokenizers.pre_tokenizers import ByteLevel

    return {
        "<|end|>": 0,
        **{one: number for number, one in enumerate(sorted(ByteLevel.alphabet()), 1)},
    }


def spell_byte(one: str) -> str:
    """A character as ByteLevel writes it: those that cannot be seen are moved up by 256."""
    return chr(ord(one) + 256) if one in "\n " else one


def make_tokenizer(words: dict[str, int]) -> Any:
    """A tokenizer that takes each byte for a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    end = "<|end|>"
    names = ["input_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=end, bos_token=end, pad_token=end, model_input_names=names
    )
    fast.chat_template = TEMPLATE
    return fast
