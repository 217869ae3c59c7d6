"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from pyengine.outputs import TokenLogprobs
from pyengine.server.answers import (
    ChatLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TextLogprobs,
    TopLogprob,
)
from pyengine.server.generation import PromptOutput
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


def joined(first: TextLogprobs | None, second: TextLogprobs) -> TextLogprobs:
    """Two pieces, one after the other."""
    if first is None:
        return second
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }


class CompletionLogprobs:
    """The shape of completions, for one choice, in pieces: the text offset goes on from one
    piece to the next."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._new_detokenizer = partial(
            Detokenizer, tokenizer, skip_special_tokens=skip_special_tokens
        )
        self._detokenizer = self._new_detokenizer()
        self._text_offset = 0  # characters completed by the tokens so far

    def extend(self, logprobs: Sequence[TokenLogprobs]) -> TextLogprobs:
        """The next tokens of the choice. `top_logprobs` always holds the token itself."""
        offsets = []
        for item in logprobs:
            offsets.append(self._text_offset)
            self._text_offset += len(self._detokenizer.push(item.token_id))
        return {
            "tokens": [token_text(self._tokenizer, item.token_id) for item in logprobs],
            "token_logprobs": [item.logprob for item in logprobs],
            "top_logprobs": [self._top(item, len(item.top_token_ids)) for item in logprobs],
            "text_offset": offsets,
        }

    def echo(self, text: str, prompt: PromptOutput, num_top: int) -> TextLogprobs:
        """The tokens of the prompt, which the choice begins with as `text`."""
        logprobs = prompt.logprobs or []
        detokenizer = self._new_detokenizer()
        ends = list(accumulate((len(detokenizer.push(t)) for t in prompt.token_ids), initial=0))
        # A tokenizer may put a space in front, which the text hasn't got.
        num_added = max(0, ends[-1] - len(text))
        self._text_offset = len(text)
        return {
            "tokens": [token_text(self._tokenizer, token_id) for token_id in prompt.token_ids],
            "token_logprobs": [None if item is None else item.logprob for item in logprobs],
            "top_logprobs": [
                None if item is None else self._top(item, num_top) for item in logprobs
            ],
            "text_offset": [min(max(0, end - num_added), len(text)) for end in ends[:-1]],
        }

    def _top(self, item: TokenLogprobs, num_top: int) -> dict[str, float]:
        likeliest = {
            token_text(self._tokenizer, token_id): logprob
            for token_id, logprob in zip(
                item.top_token_ids[:num_top], item.top_logprobs[:num_top], strict=True
            )
        }
        return likeliest | {token_text(self._tokenizer, item.token_id): item.logprob}


def prompt_logprobs(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs | None], num_top: int
) -> PromptLogprobs:
    """The log-probabilities of a prompt, in vLLM's shape."""

    def entry(token_id: int, logprob: float, rank: int) -> PromptLogprob:
        text = token_text(tokenizer, token_id)
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    def entries(item: TokenLogprobs) -> dict[str, PromptLogprob]:
        likeliest = zip(item.top_token_ids[:num_top], item.top_logprobs, strict=False)
        found = {str(t): entry(t, value, k + 1) for k, (t, value) in enumerate(likeliest)}
        return found | {str(item.token_id): entry(item.token_id, item.logprob, item.rank)}

    return [None if item is None else entries(item) for item in logprobs]


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs]) -> ChatLogprobs:
    """The shape of chat completions."""

    def entry(token_id: int, logprob: float) -> TopLogprob:
        return {
            "token": token_text(tokenizer, token_id),
            "logprob": logprob,
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    return {
        "content": [
            {
                **entry(item.token_id, item.logprob),
                "top_logprobs": list(map(entry, item.top_token_ids, item.top_logprobs)),
            }
            for item in logprobs
        ]
    }
