"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Sequence
from typing import Any

from pyengine.outputs import TokenLogprobs
from pyengine.text.detokenizer import Detokenizer
from pyengine.text.tokenizer import Tokenizer


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    r"""A token as text; one that isn't whole characters as "bytes:\xf0\x9f", as OpenAI does, so
    that different tokens stay different."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class CompletionLogprobs:
    """The shape of completions, for one choice, in pieces: the text offset goes on from one
    piece to the next."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._text_offset = 0  # characters completed by the tokens so far

    def extend(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The next tokens of the choice. `top_logprobs` always holds the token itself."""
        tokens, offsets, top = [], [], []
        for item in logprobs:
            text = token_text(self._tokenizer, item.token_id)
            likeliest = {
                token_text(self._tokenizer, token_id): logprob
                for token_id, logprob in zip(item.top_token_ids, item.top_logprobs, strict=True)
            }
            tokens.append(text)
            offsets.append(self._text_offset)
            top.append(likeliest | {text: item.logprob})
            self._text_offset += len(self._detokenizer.push(item.token_id))
        return {
            "tokens": tokens,
            "token_logprobs": [item.logprob for item in logprobs],
            "top_logprobs": top,
            "text_offset": offsets,
        }


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The shape of chat completions."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_text(tokenizer, token_id),
            "logprob": logprob,
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    return {
        "content": [
            entry(item.token_id, item.logprob)
            | {"top_logprobs": list(map(entry, item.top_token_ids, item.top_logprobs))}
            for item in logprobs
        ]
    }
