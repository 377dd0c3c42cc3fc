"""A byte tokenizer with control tokens and a chat template, whose ids are easy to write by hand."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think is defined %}<think>{% endif %}{% endif %}"
)


def byte_tokenizer():
    """Every byte a token; then the special tokens <|im_start|> and <|im_end|>, and <think>, which is added and not special."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bytewise.pre_tokenizer, bytewise.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<|im_end|>", bos_token="<|im_start|>")
    tokenizer.add_tokens(["<think>"])
    tokenizer.chat_template = CHATML
    return tokenizer


def in_bytes(tokenizer, text):
    """The ids of a text letter by letter: no token of several letters can be among them."""
    return [i for letter in text for i in tokenizer(letter)["input_ids"]]
