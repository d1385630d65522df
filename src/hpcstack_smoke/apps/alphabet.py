"""A tiny language model whose answers are known: after each letter comes the next of the alphabet.

It is made on the spot with the image's own torch, transformers and tokenizers, so that no model is
fetched. A token is a character. Each has an axis of its own in the hidden state, on which the
output layer reads the character that follows. The layers between are those of a Llama with small
random weights: they are computed, and change no answer as long as they are computed right.

Tested in tests/unit/smoke/test_serving.py and tests/integration/test_serving.py.
"""

from __future__ import annotations

from typing import Any

# what follows what; with a space and a new line, since servers hold a stream's text back until a
# word ends
CIRCLE = "abcdefghijklm\nnopqrstuvwxyz "
CLIENTS = 11  # so many prompts end in different letters; further clients ask what others ask
TOKENS = 30  # of each answer: once around, and no white space at its ends
VOCABULARY, HIDDEN, HEADS, LAYERS = 320, 512, 8, 2
# of the random weights: their part of a hidden state stays far below the token's own 1
NOISE = 0.005
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_prompt(number: int) -> str:
    """Return the prompt of the client NUMBER; it ends with a letter of its own."""
    return f"hpcstack asks client {number}: {CIRCLE[number % CLIENTS]}"


def expect_answer(number: int) -> str:
    """Return the TOKENS tokens with which the model answers `make_prompt(NUMBER)`.

    They are what comes out where each is the likeliest, at temperature 0.
    """
    return "".join(CIRCLE[(number % CLIENTS + step) % len(CIRCLE)] for step in range(1, TOKENS + 1))


def make_alphabet_model(folder: str) -> None:
    """Write the model and its tokenizer, 9 MB, into FOLDER, as Hugging Face's files.

    ImportError where the image has no transformers.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    words = _make_vocabulary()
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
        embedding = model.model.embed_tokens.weight
        output = model.lm_head.weight
        embedding.zero_()
        output.zero_()
        # each token has its own axis
        for token in range(VOCABULARY):
            embedding[token, token] = 1.0
        # and is followed by the next one of the circle
        for one, after in zip(CIRCLE, CIRCLE[1:] + CIRCLE[0]):
            output[words[spell_byte(after)], words[spell_byte(one)]] = 1.0

    model.to(torch.bfloat16).save_pretrained(folder)
    make_tokenizer(words).save_pretrained(folder)


def _make_vocabulary() -> dict[str, int]:
    """Return {character as ByteLevel writes it: token}; token 0 ends a text."""
    from tokenizers.pre_tokenizers import ByteLevel

    words = {"<|end|>": 0}
    for number, character in enumerate(sorted(ByteLevel.alphabet()), 1):
        words[character] = number
    return words


def spell_byte(one: str) -> str:
    """Return ONE as ByteLevel writes it: a new line and a space are moved up by 256."""
    return chr(ord(one) + 256) if one in "\n " else one


def make_tokenizer(words: dict[str, int]) -> Any:
    """Return a tokenizer for which each byte is a token."""
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
