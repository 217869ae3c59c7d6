"""How tokens are chosen, and when to stop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyengine.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 100.0
MAX_LOGIT_BIASES = 1024
MAX_N = 128
# Compiling the longest takes about a second at worst. That of a regex grows with its square.
MAX_REGEX_CHARS = 10_000
MAX_GRAMMAR_CHARS = {
    "json_schema": 100_000,
    "regex": MAX_REGEX_CHARS,
    "choice": 100_000,
    "grammar": 10_000,
    "tools": 100_000,
}

GrammarKind = Literal["json_schema", "regex", "choice", "grammar", "tools"]


@dataclass(frozen=True)
class Grammar:
    """What an output must match from its first token to its last.

    Args:
        kind: how `text` says it: "json_schema"; "regex", which the whole output matches; "choice",
            a JSON list of strings of which the output is one; "grammar", in Lark's notation or in
            GBNF (with a rule "root ::= ..."); "tools", a choice of JSON schemas in Lark's notation.
        text: at most 100,000 characters, 10,000 of a "regex" or a "grammar".
        param: the field of the request that it came from, which errors name.

    Raises:
        InvalidRequestError: the text is too long.
    """

    kind: GrammarKind
    text: str
    param: str = field(default="grammar", compare=False)

    def __post_init__(self) -> None:
        limit = MAX_GRAMMAR_CHARS[self.kind]
        if len(self.text) > limit:
            raise InvalidRequestError(
                f"{self.param} takes at most {limit} characters, got {len(self.text)}",
                self.param,
            )


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The sampling options of one request.

    Args:
        n: how many sequences to generate from the prompt, 1 to 128.
        max_tokens: the most tokens to generate per sequence; None means as many as fit, 0 only
            scores the prompt (see prompt_logprobs).
        min_tokens: end-of-sequence and stop conditions are ignored before so many tokens.
        temperature: 0 is greedy; ties go to the lowest token id.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the likeliest tokens whose probabilities sum to at least top_p, in (0, 1].
        min_p: drop tokens less likely than min_p times the likeliest, in [0, 1].
        repetition_penalty: divides positive (multiplies negative) logits of tokens in the prompt
            or the output (Keskar et al. 2019); 1 is off.
        presence_penalty: subtracted from the logits of tokens in the output, in [-2, 2].
        frequency_penalty: subtracted once per occurrence in the output, in [-2, 2].
        logit_bias: what is added to the logits of some tokens, by token id, after the penalties:
            -100 to 100 each, for at most 1024 tokens.
        seed: the noise is a function of the seed and the output index alone; None draws one.
        stop: strings that end the output, at most 16 of at most 1024 characters; the text is cut
            before the first.
        stop_token_ids: tokens that end the output, at most 1024.
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: go on after the end-of-sequence token.
        logprobs: report each token's log-probability and those of the so many likeliest, 0 to 20.
        prompt_logprobs: the same for the prompt's tokens.
        skip_special_tokens: leave special tokens out of the text.
        grammar: what the output must match; it ends as soon as nothing may follow.

    Raises:
        InvalidRequestError: a value is out of range; `param` names the field.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidRequestError(
                f"grammar must be a Grammar, got {type(self.grammar).__name__}", "grammar"
            )
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        _check_range("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            _check_range("max_tokens", self.max_tokens, 0)
        _check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_k", self.top_k, -1, 2**31 - 1)
        if not 0 < self.top_p <= 1:
            raise InvalidRequestError(f"top_p must be in (0, 1], got {self.top_p}", "top_p")
        _check_range("min_p", self.min_p, 0.0, 1.0)
        if not 0 < self.repetition_penalty <= 100:
            raise InvalidRequestError(
                f"repetition_penalty must be in (0, 100], got {self.repetition_penalty}",
                "repetition_penalty",
            )
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_logit_bias()
        if self.seed is not None:
            _check_range("seed", self.seed, -(2**63), 2**63 - 1)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", "stop"
            )
        if not all(self.stop):
            raise InvalidRequestError("stop must not hold an empty string", "stop")
        if any(len(string) > MAX_STOP_CHARS for string in self.stop):
            raise InvalidRequestError(
                f"stop takes strings of at most {MAX_STOP_CHARS} characters, got one of "
                f"{max(map(len, self.stop))}",
                "stop",
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequestError(
                f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids, "
                f"got {len(self.stop_token_ids)}",
                "stop_token_ids",
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_range(name, value, 0, MAX_LOGPROBS)

    def _check_logit_bias(self) -> None:
        biases = self.logit_bias or {}
        if len(biases) > MAX_LOGIT_BIASES:
            raise InvalidRequestError(
                f"logit_bias takes at most {MAX_LOGIT_BIASES} tokens, got {len(biases)}",
                "logit_bias",
            )
        for token_id, bias in biases.items():
            if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:  # nor is NaN
                raise InvalidRequestError(
                    f"logit_bias must be in [-100, 100], got {bias} for the token {token_id}",
                    "logit_bias",
                )


def _check_range(name: str, value: float, low: float, high: float | None = None) -> None:
    if not value >= low:  # nor is NaN
        raise InvalidRequestError(f"{name} must be at least {low}, got {value}", name)
    if high is not None and value > high:
        raise InvalidRequestError(f"{name} must be at most {high}, got {value}", name)
