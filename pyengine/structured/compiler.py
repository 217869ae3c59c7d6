"""From a grammar as a client writes it to one that can be followed token by token.

The work is llguidance's (https://github.com/guidance-ai/llguidance): a lexer of regex derivatives
under an Earley parser, walked over a trie of the vocabulary.
"""

import json
import re
import threading
from collections import OrderedDict
from functools import cached_property, partial

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from pyengine.errors import InvalidRequestError
from pyengine.sampling_params import Grammar
from pyengine.structured.deep_stack import call_with_deep_stack
from pyengine.structured.lark import normalize_lark
from pyengine.structured.limits import find_excess, limits_of
from pyengine.structured.matcher import GrammarMatcher
from pyengine.structured.schema import normalize_schema
from pyengine.text.tokenizer import Tokenizer

MAX_CACHED_GRAMMARS = 128
MAX_REASON_CHARS = 500

# Between the tokens of JSON: nothing, a space, or a line end and an indentation. Without a bound
# a small model may never come out of the spaces.
_JSON_WHITESPACE = r" |\n[ \t]{0,40}"

# Of an error in llguidance's words -> what it is about.
_MEANINGS = {
    "NoExtension": "no text matches it",
    "coerce_one_of": "oneOf is supported where its schemas can't both hold: let them differ in "
    "type, or in the const of a required property, or write anyOf",
    "maximum recursion depth": "it is nested too deeply",
    "panic:": "it can't be compiled, by a fault of the grammar library: write it in another way",
}
_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.*?)\]")
_REGEX_ERROR = re.compile(r"^error: .*$", re.MULTILINE)
_GBNF_ROOT = re.compile(r"^\s*root\s*::=", re.MULTILINE)


class CompiledGrammar:
    """A grammar over the tokens of one model. Immutable, so any thread may use it.

    Args:
        start: at the beginning of the grammar; it is only ever copied.
        first_allowed: the mask of the first token, see GrammarMatcher.allowed_tokens.
    """

    def __init__(self, start: LLMatcher, first_allowed: bytes) -> None:
        self._start = start
        self._first_allowed = first_allowed

    def new_matcher(self, param: str = "grammar") -> GrammarMatcher:
        """For one sequence, whose grammar came from the field `param`. It shares nothing that
        changes with others."""
        return GrammarMatcher(self._start.deep_copy(), self._first_allowed, param)


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
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()  # latest use last

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Takes about a millisecond, up to a second for the worst; the GIL is free meanwhile. The
        first call does what `prepare` does too.

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

    def prepare(self) -> None:
        """Does what the first grammar does for all later ones: sorts the vocabulary and gets the
        tokenizer ready. That holds the GIL for 0.2 s or so."""
        if self._tokenizer.eos_token_ids:
            self._compile(Grammar("choice", '["a"]'))

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
        limits = limits_of(grammar.kind)
        start, first_allowed = call_with_deep_stack(partial(_start, vocabulary, source, limits))
        if start.is_error():
            raise _invalid(grammar, start.get_error())
        return CompiledGrammar(start, first_allowed)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        eos_token_ids = sorted(self._tokenizer.eos_token_ids)
        tokens = TokenizerWrapper(_Tokens(self._tokenizer, self._vocab_size))
        return LLTokenizer(tokens, eos_token=eos_token_ids)


def _start(vocabulary: LLTokenizer, source: str, limits: LLParserLimits) -> tuple[LLMatcher, bytes]:
    """A matcher at the beginning, and the mask of the first token: of some grammars it shows only
    then that they can't be followed, and for some it takes long."""
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
    return matcher, b"" if matcher.is_error() else matcher.compute_bitmask()


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
            # Lenient would be to ignore the keywords that aren't supported.
            return LLMatcher.grammar_from_json_schema(
                normalize_schema(grammar.text),
                overrides={"whitespace_pattern": _JSON_WHITESPACE, "lenient": False},
            )
        case "regex":
            num_backslashes = len(grammar.text) - len(grammar.text.rstrip("\\"))
            if num_backslashes % 2:  # llguidance would leave it out
                raise ValueError("the last backslash escapes nothing")
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            choices = json.loads(grammar.text)
            if not choices or not all(isinstance(choice, str) for choice in choices):
                raise ValueError("choices must be a list of strings, and hold at least one")
            # As one terminal they are the lexer's work. As alternatives of a rule each would be an
            # item of the parser, whose number is bounded.
            terminal = " | ".join(map(json.dumps, choices))
            return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {terminal}")
        case "grammar":
            is_gbnf = _GBNF_ROOT.search(grammar.text) is not None
            text = _gbnf_to_lark(grammar.text) if is_gbnf else normalize_lark(grammar.text)
            return LLMatcher.grammar_from_lark(text)
        case "tools":
            return LLMatcher.grammar_from_lark(normalize_lark(grammar.text))


def _gbnf_to_lark(text: str) -> str:
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(str(error)) from error


def _invalid(grammar: Grammar, reason: str) -> InvalidRequestError:
    excess = find_excess(reason, grammar.param)
    if excess is not None:
        return excess
    reason = reason.removesuffix("<non-verbose/>").strip()
    for words, meaning in _MEANINGS.items():
        if words in reason:
            reason = meaning
    reason = _UNSUPPORTED.sub(r"unsupported keywords: \1", reason)
    if len(reason) > MAX_REASON_CHARS:  # it repeats a line of the grammar, before what is wrong
        error = _REGEX_ERROR.search(reason)
        reason = reason[:MAX_REASON_CHARS] + "... " + ("" if error is None else error.group())
    return InvalidRequestError(f"{grammar.param}: {reason}", grammar.param)
