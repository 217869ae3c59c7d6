"""How much work a grammar may take, and what its author is told beyond that.

Every sequence has the limits for itself, and they count work, not time: whether a request fails
depends on the request alone. What a token may take is little, as masks are computed between the
steps of all sequences.
"""

import re

from llguidance import LLParserLimits

from pyengine.errors import GrammarTooComplexError
from pyengine.sampling_params import GrammarKind

# Items are what an Earley parser keeps of where an output may be in its grammar; those of one place
# are a row, in which each is looked for from the start. So a token may cost as much as its items
# times the length of a row. Schemas have rows as long as their optional properties are many, but
# few of them; rows of ambiguous grammars grow with the output.
_MAX_ITEMS, _MAX_ROW = 5_000, 500
_MAX_ITEMS_OF_SCHEMA, _MAX_ROW_OF_SCHEMA = 10_000, 800
_MAX_LEXER_STEPS = 50_000
_MAX_LEXER_STEPS_AT_START = 200_000

_PARSER_ADVICE = (
    "make it less ambiguous, let a terminal match a word rather than a character, repeat with * or "
    "+ rather than by recursion, or have fewer optional properties and alternatives in one place"
)
_LEXER_ADVICE = "simplify its regexes: fewer and smaller counted repetitions, less overlap"

# In llguidance's words -> in ours.
_EXCESSES = {
    r"Too many items \(limit (\d+)": rf"takes more than \1 parser items for a token: "
    rf"{_PARSER_ADVICE}",
    r" items; max is (\d+)": rf"takes more than \1 parser items in one place: {_PARSER_ADVICE}",
    r"too many expressions": rf"takes more than {_MAX_LEXER_STEPS} steps of the lexer for a token: "
    rf"{_LEXER_ADVICE}",
    r"too many states|initial lexer configuration": rf"makes too large a lexer: {_LEXER_ADVICE}",
    r"grammar size": r"is too large: make it shorter",
}


def limits_of(kind: GrammarKind) -> LLParserLimits:
    is_schema = kind in ("json_schema", "tools")
    return LLParserLimits(
        step_max_items=_MAX_ITEMS_OF_SCHEMA if is_schema else _MAX_ITEMS,
        max_items_in_row=_MAX_ROW_OF_SCHEMA if is_schema else _MAX_ROW,
        step_lexer_fuel=_MAX_LEXER_STEPS,
        initial_lexer_fuel=_MAX_LEXER_STEPS_AT_START,
        verbose_errors=False,  # which repeat the output
    )


def find_excess(reason: str, param: str) -> GrammarTooComplexError | None:
    """The error for what llguidance says, if that is about a limit.

    Args:
        param: the field that the grammar came from.
    """
    for words, excess in _EXCESSES.items():
        if match := re.search(words, reason):
            return GrammarTooComplexError(f"{param}: the grammar {match.expand(excess)}", param)
    return None
