"""Nothing that a Lark grammar asks for is taken without effect."""

import pytest

from pyengine.errors import InvalidRequestError
from pyengine.sampling_params import Grammar
from pyengine.structured import GrammarCompiler
from tests.tiny import VOCAB_SIZE, ByteTokenizer


def compiler() -> GrammarCompiler:
    return GrammarCompiler(ByteTokenizer(frozenset({256})), VOCAB_SIZE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start[temperature=0.5]: /a/", "the attribute temperature has no effect: use the request"),
        ("start[capture]: /a/", "the attribute capture has no effect"),
        ('start[lazy, capture="x"]: /a/', "the attribute capture has no effect"),
        ("start: a\na [ # why\n  capture\n] : /a/", "the attribute capture has no effect"),
        ('start: a "x"\na[stop="x"]: /[a-z]+/', "the attribute stop has no effect"),
        ('start[suffix="x", stop_capture="y"]: /a/', "the attribute stop_capture has no effect"),
        ("start[zip]: /a/", "zip"),
        ('%llguidance {"no_forcing": true}\nstart: "a"', "no_forcing isn't supported"),
        ('start: %json {"type": "integer", "pattern": 5}', "schema.pattern must be a string"),
        ('start: %json {"x-guidance": {"lenient": true}, "not": {}}', "lenient isn't supported"),
        ('start: %json {"allOf": [{"multipleOf": 997}, {"multipleOf": 1009}]}', "least common"),
        ("start: %json {x}", "what follows %json isn't JSON"),
    ],
)
def test_what_has_no_effect_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compiler().compile(Grammar("grammar", text, "guided_grammar"))
    assert message in str(caught.value)
    assert caught.value.param == "guided_grammar"


@pytest.mark.parametrize(
    ("text", "spelt", "following"),
    [
        ('start: "x[capture]:" /y[capture]: z/', "x[capture]:y", "c"),
        ('start: "a" [ "b" ] // [capture]:\n# [stop]:', "a", "b"),
        ('start[suffix="x"]: /[a-z]*/', "a", "bx"),
        ("start[max_tokens=2]: /[a-z]*/", "a", "b"),
        ('%llguidance {"allow_initial_skip": true}\n%ignore " "\nstart: "a"', " ", "a"),
        ('start: %json {"type": "array", "minItems": 1.0, "uniqueItems": false} "b"', "[1]", "b"),
    ],
)
def test_what_has_an_effect_has_it(text: str, spelt: str, following: str) -> None:
    matcher = compiler().compile(Grammar("grammar", text)).new_matcher()
    for byte in spelt.encode():
        matcher.accept(byte)
    allowed = matcher.allowed_tokens()
    for byte in following.encode():
        assert allowed[byte // 8] >> byte % 8 & 1


def test_max_tokens_of_a_rule_ends_it() -> None:
    matcher = compiler().compile(Grammar("grammar", "start[max_tokens=2]: /[a-z]*/")).new_matcher()
    for byte in b"ab":
        assert not matcher.is_finished
        matcher.allowed_tokens()
        matcher.accept(byte)
    assert matcher.is_finished
