"""From a grammar as a client writes it to one that can be followed token by token.

The work is llguidance's (https://github.com/guidance-ai/llguidance): a lexer of regex derivatives
under an Earley parser, walked over a trie of the vocabulary.
"""

import json
import re
import threading
from collections import OrderedDict
from fractions import Fraction
from functools import cached_property, partial
from math import isfinite, lcm
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from pyengine.errors import InvalidRequestError
from pyengine.sampling_params import MAX_REGEX_CHARS, Grammar
from pyengine.structured.deep_stack import call_with_deep_stack
from pyengine.structured.matcher import GrammarMatcher
from pyengine.text.tokenizer import Tokenizer

MAX_CACHED_GRAMMARS = 128
MAX_COMMON_MULTIPLE = 100_000
MAX_REASON_CHARS = 500

# Between the tokens of JSON: nothing, a space, or a line end and an indentation. Without a bound
# a small model may never come out of the spaces.
_JSON_WHITESPACE = r" |\n[ \t]{0,40}"


_REGEX_ERROR = re.compile(r"^error: .*$", re.MULTILINE)
_GBNF_ROOT = re.compile(r"^\s*root\s*::=", re.MULTILINE)


class CompiledGrammar:
    """A grammar over the tokens of one model. Immutable, so any thread may use it.

    Args:
        start: at the beginning of the grammar; it is only ever copied.
    """

    def __init__(self, start: LLMatcher) -> None:
        self._start = start

    def new_matcher(self) -> GrammarMatcher:
        """For one sequence. It shares nothing that changes with others."""
        return GrammarMatcher(self._start.deep_copy())


class GrammarCompiler:
    """Compiles grammars, and keeps the latest ones. Any thread may use it.

    Args:
        tokenizer: of the model.
        vocab_size: how many logits the model computes per token; the tokenizer may have fewer
            tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        # Without verbose errors, which repeat the output.
        # A token's mask is computed between two steps: it must not take long for anyone.
        self._limits = LLParserLimits(
            initial_lexer_fuel=200_000, step_max_items=10_000, verbose_errors=False
        )
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()  # latest use last

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Takes about a millisecond, up to a second for the worst; the GIL is free meanwhile. The
        first call sorts the vocabulary too, in about a second.

        Raises:
            InvalidRequestError: it has an error, needs what isn't supported, is too complex, or
                allows no text at all.
        """
        with self._lock:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                return self._compiled[grammar]
        compiled = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = compiled
            if len(self._compiled) > MAX_CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        if not self._tokenizer.eos_token_ids:
            raise InvalidRequestError(
                f"{grammar.param}: the model has no end-of-sequence token, so its output can't be "
                "held to a grammar",
                grammar.param,
            )
        try:
            source = _to_llguidance(grammar)
        except (ValueError, RecursionError) as error:
            raise _invalid(grammar, str(error)) from None
        with self._lock:
            vocabulary = self._vocabulary
        start = call_with_deep_stack(partial(_start, vocabulary, source, self._limits))
        if start.is_error():
            raise _invalid(grammar, start.get_error())
        return CompiledGrammar(start)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        eos_token_ids = sorted(self._tokenizer.eos_token_ids)
        tokens = TokenizerWrapper(_Tokens(self._tokenizer, self._vocab_size))
        return LLTokenizer(tokens, eos_token=eos_token_ids)


def _start(vocabulary: LLTokenizer, source: str, limits: LLParserLimits) -> LLMatcher:
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()  # some grammars show only now that they can't be followed
    return matcher


class _Tokens:
    """A vocabulary as llguidance reads it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = [i for i in range(vocab_size) if tokenizer.is_special(i)]
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def _to_llguidance(grammar: Grammar) -> str:
    """
    Raises:
        ValueError: it isn't JSON, or not in the notation that it seems to be in.
    """
    match grammar.kind:
        case "json_schema":
            _check_costs(grammar.text)
            # Lenient would be to ignore the keywords that aren't supported.
            return LLMatcher.grammar_from_json_schema(
                grammar.text,
                overrides={"whitespace_pattern": _JSON_WHITESPACE, "lenient": False},
            )
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            choices = json.loads(grammar.text)
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))
        case "grammar":
            is_gbnf = _GBNF_ROOT.search(grammar.text) is not None
            text = _gbnf_to_lark(grammar.text) if is_gbnf else grammar.text
            return LLMatcher.grammar_from_lark(text)


def _check_costs(schema: str) -> None:
    """Bounds what nothing else does. Several multipleOf for one number are worked out as one
    automaton, with as many states as their least common multiple; patterns are regexes.

    Raises:
        ValueError: they are too many or too long, or `schema` isn't JSON.
    """
    multiples: set[int] = set()
    num_pattern_chars = 0

    def collect(node: dict[str, Any]) -> dict[str, Any]:
        nonlocal num_pattern_chars
        value = node.get("multipleOf")
        if isinstance(value, int | float) and isfinite(value):
            multiples.add(abs(Fraction(str(value)).numerator))
        by_pattern = node.get("patternProperties")
        patterns = [node.get("pattern"), *(by_pattern if isinstance(by_pattern, dict) else ())]
        num_pattern_chars += sum(len(pattern) for pattern in patterns if isinstance(pattern, str))
        return node

    json.loads(schema, object_hook=collect)
    if num_pattern_chars > MAX_REGEX_CHARS:
        raise ValueError(
            f"all pattern and patternProperties together may have at most {MAX_REGEX_CHARS} "
            f"characters, got {num_pattern_chars}"
        )
    if len(multiples) > 1 and lcm(*multiples) > MAX_COMMON_MULTIPLE:
        raise ValueError(
            f"the least common multiple of all multipleOf must be at most {MAX_COMMON_MULTIPLE}"
        )


def _gbnf_to_lark(text: str) -> str:
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(str(error)) from error


def _invalid(grammar: Grammar, reason: str) -> InvalidRequestError:
    reason = reason.removesuffix("<non-verbose/>").strip()
    if reason.startswith("NoExtension"):
        reason = "no text matches it"
    if len(reason) > MAX_REASON_CHARS:  # it repeats a line of the grammar, before what is wrong
        error = _REGEX_ERROR.search(reason)
        reason = reason[:MAX_REASON_CHARS] + "... " + ("" if error is None else error.group())
    return InvalidRequestError(f"{grammar.param}: {reason}", grammar.param)
