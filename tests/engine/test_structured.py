"""Outputs that are held to a grammar, among others and alone."""

import json
import random

import pytest

from pyengine.engine import FaultInjection
from pyengine.errors import GrammarTooComplexError, InvalidRequestError, StepFailedError
from pyengine.outputs import CompletionOutput
from pyengine.sampling_params import Grammar, SamplingParams
from tests.engine.harness import Harness, assert_same, greedy, prompt_of, solo
from tests.tiny import EOS_TOKEN_ID, tiny_model

DIGITS = Grammar("regex", "[0-9]{4,}")
OBJECT = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"a": {"type": "boolean"}, "b": {"type": "integer", "maximum": 99}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    ),
)

AMBIGUOUS = Grammar("grammar", "start: s\ns: s? s? s? s? /[a-z]/ s? s?")


def only(params: SamplingParams) -> CompletionOutput:
    return solo(prompt_of(5), params).outputs[0]


@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        (Grammar("choice", '["red", "gr\\u00fcn", "\\"\\\\"]'), {"red", "grün", '"\\'}),
        (Grammar("regex", "(ab|cd)!"), {"ab!", "cd!"}),
        (Grammar("grammar", 'root ::= "x" [pq]'), {"xp", "xq"}),
        (Grammar("grammar", 'start: "x" /[pq]/'), {"xp", "xq"}),
        (Grammar("json_schema", '{"enum": [1, null]}'), {"1", "null"}),
    ],
)
def test_an_output_matches_its_grammar_and_ends_where_nothing_may_follow(grammar, texts):
    for seed in range(5):
        output = only(SamplingParams(grammar=grammar, temperature=2, seed=seed, max_tokens=20))
        assert output.text in texts
        assert output.finish_reason == "stop"
        assert output.stop_reason is None
        assert EOS_TOKEN_ID not in output.token_ids


def test_the_last_token_that_fits_may_complete_the_output():
    grammar = Grammar("regex", "abc")
    assert only(greedy(3, grammar=grammar)).finish_reason == "stop"
    cut = only(greedy(2, grammar=grammar))
    assert (cut.text, cut.finish_reason) == ("ab", "length")


def test_the_end_token_comes_only_where_the_grammar_may_end():
    for seed in range(20):
        output = only(
            SamplingParams(grammar=DIGITS, temperature=1, seed=seed, logit_bias={EOS_TOKEN_ID: 100})
        )
        assert output.token_ids[4:] == [EOS_TOKEN_ID]
        assert (len(output.text), output.finish_reason) == (4, "stop")


def test_min_tokens_and_ignore_eos_keep_an_output_going_while_the_grammar_does():
    eager = {"grammar": DIGITS, "logit_bias": {EOS_TOKEN_ID: 100}}
    output = only(greedy(20, min_tokens=9, **eager))
    assert (len(output.text), output.finish_reason) == (9 - 1 + 1, "stop")
    output = only(greedy(20, ignore_eos=True, **eager))
    assert (len(output.text), output.finish_reason) == (20, "length")
    output = only(greedy(20, ignore_eos=True, min_tokens=10, grammar=Grammar("regex", "abc")))
    assert (output.text, output.finish_reason) == ("abc", "stop")


def test_a_stop_token_that_is_all_the_grammar_allows_is_drawn_below_min_tokens():
    params = greedy(20, grammar=Grammar("regex", "abc"), min_tokens=3, stop_token_ids=[ord("b")])
    output = only(params)
    assert (output.text, output.finish_reason) == ("abc", "stop")


def test_a_stop_string_ends_an_output_before_its_grammar_does():
    output = only(greedy(20, grammar=Grammar("regex", "abcdef"), stop="cd"))
    assert (output.text, output.finish_reason, output.stop_reason) == ("ab", "stop", "cd")


def test_log_probabilities_stay_those_of_the_model():
    free = only(greedy(1, logprobs=3)).logprobs[0]
    held = only(greedy(1, logprobs=3, grammar=Grammar("regex", "a+"))).logprobs[0]
    assert held.token_id == ord("a")
    assert (held.top_token_ids, held.top_logprobs) == (free.top_token_ids, free.top_logprobs)
    assert held.logprob < free.logprob


def test_each_of_n_outputs_follows_the_grammar_on_its_own():
    params = SamplingParams(grammar=OBJECT, temperature=1, n=8, seed=1, max_tokens=300)
    output = solo(prompt_of(5), params)
    texts = {o.text for o in output.outputs}
    assert len(texts) > 1
    assert all(json.loads(text).keys() == {"a", "b"} for text in texts)


def test_any_schedule_gives_the_tokens_of_each_request_alone():
    """Preemption, neighbours and chunked prompts included."""
    rng = random.Random(0)
    grammars = [
        OBJECT,
        DIGITS,
        None,
        Grammar("json_schema", '{"type": "array", "items": {"type": "string", "maxLength": 9}}'),
        Grammar("grammar", 'root ::= "(" root ")" | [a-z]'),
        Grammar("choice", '["yes, of course", "yes, but", "no"]'),
    ]
    cases = [
        (
            prompt_of(rng.randrange(1, 14), k),
            SamplingParams(
                grammar=grammars[k % len(grammars)],
                temperature=k % 3 / 2,
                seed=k,
                n=1 + k % 2,
                max_tokens=rng.randrange(5, 30),
                logprobs=k % 2 or None,
                frequency_penalty=k % 5 / 5,
            ),
        )
        for k in range(18)
    ]
    expected = [solo(*case) for case in cases]
    num_preemptions = 0
    for _ in range(6):
        harness = Harness(
            FaultInjection(preempt_at_steps=frozenset(rng.sample(range(120), 30))),
            num_kv_blocks=rng.randrange(12, 24),
            max_num_batched_tokens=rng.choice([3, 8, 32]),
            max_draft_tokens=rng.choice([0, 3]),
            enable_prefix_caching=rng.random() < 0.5,
        )
        order = rng.sample(range(len(cases)), len(cases))
        ids = {harness.add(*cases[k]): k for k in order}
        for request_id, output in harness.run().items():
            assert_same(output, expected[ids[request_id]])
        num_preemptions += harness.num_preemptions
    assert num_preemptions > 50


def test_a_grammar_that_gets_too_complex_ends_its_request_alone(caplog):
    """It once ended as a failed step, with a traceback in the log."""
    ambiguous = greedy(100, grammar=AMBIGUOUS, ignore_eos=True, n=2)
    places = set()
    for num_others in (0, 3):
        harness = Harness(num_kv_blocks=256)
        others = [
            harness.add(prompt_of(4, k), greedy(12, grammar=OBJECT)) for k in range(num_others)
        ]
        request_id = harness.add(prompt_of(5), ambiguous)
        with pytest.raises(GrammarTooComplexError, match="500 parser items in one place") as caught:
            harness.run()
        assert caught.value.param == "grammar"
        places.add(len(harness.outputs[request_id].outputs[0].token_ids))
        harness.run()
        for k, other in enumerate(others):
            assert_same(harness.outputs[other], solo(prompt_of(4, k), greedy(12, grammar=OBJECT)))
    assert len(places) == 1  # it depends on the request alone
    assert places != {0}
    assert not caplog.records


def test_a_schema_with_a_thousand_optional_properties_is_too_complex():
    properties = {f"p{i}": {"type": "integer"} for i in range(1000)}
    grammar = Grammar("json_schema", json.dumps({"type": "object", "properties": properties}))
    with pytest.raises(GrammarTooComplexError, match="fewer optional properties"):
        only(greedy(20, grammar=grammar))


@pytest.mark.parametrize(("num_optional", "value"), [(100, {}), (140, {"type": "string"})])
def test_a_schema_may_have_many_optional_properties(num_optional, value):
    properties = {f"p{i}": value for i in range(num_optional)}
    grammar = Grammar("json_schema", json.dumps({"type": "object", "properties": properties}))
    for seed in range(5):
        output = only(SamplingParams(temperature=2, seed=seed, max_tokens=100, grammar=grammar))
        assert output.text.startswith("{")


def test_a_token_that_the_grammar_does_not_allow_is_a_fault_of_the_engine():
    harness = Harness(num_kv_blocks=64)
    other = harness.add(prompt_of(4), greedy(12))
    request_id = harness.add(prompt_of(5), greedy(12, grammar=DIGITS))
    harness.step()
    # What the output holds isn't what the grammar has seen: no token can be accepted.
    harness.sequences[request_id][0].output._grammar._matcher.consume_token(ord("x"))
    with pytest.raises(StepFailedError, match="the grammar cannot be followed"):
        harness.run()
    assert_same(harness.run()[other], solo(prompt_of(4), greedy(12)))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("json_schema", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (Grammar("json_schema", '{"type": "string", "format": "zip"}'), "format: zip"),
        (Grammar("json_schema", '{"type": "integer", "minimum": 2, "maximum": 1}'), "Unsatisfi"),
        (Grammar("json_schema", '{"$ref": "#/$defs/x"}'), r"/\$defs/x"),
        (Grammar("json_schema", '{"x-guidance": {"lenient": true}}'), "x-guidance isn't supported"),
        (Grammar("json_schema", '{"not": {}, "if": {}}'), 'unsupported keywords: "if", "not"'),
        (Grammar("json_schema", '{"oneOf": [{}, {"type": "null"}]}'), "or write anyOf$"),
        (Grammar("json_schema", "true"), "must be an object"),
        (Grammar("json_schema", "{"), "Expecting"),
        (Grammar("json_schema", "[" * 5000), "it is nested too deeply"),
        (Grammar("regex", "a("), "unclosed group"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("regex", "a\\"), "escapes nothing"),
        (Grammar("grammar", "start: missing"), "missing"),
        (Grammar("grammar", 'start: "a'), "lexer error"),
        (Grammar("grammar", "root ::= missing"), "missing"),
        (Grammar("grammar", "start: start"), "no text matches"),
        (
            Grammar("json_schema", '{"allOf": [{"multipleOf": 997}, {"multipleOf": 1009}]}'),
            "multipleOf must be at most 100000",
        ),
        (Grammar("choice", "[]"), "at least one"),
        (Grammar("regex", "(" * 5000), "error: "),
        (Grammar("grammar", "root ::= " + "(" * 5000), "it is nested too deeply"),
        (Grammar("grammar", ""), "Empty grammar"),
    ],
)
def test_a_grammar_that_cannot_be_honoured_is_refused_with_the_reason(grammar, reason):
    harness = Harness()
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        harness.add(prompt_of(3), greedy(grammar=grammar))
    assert caught.value.param == "grammar"
    harness.check_nothing_left()


def test_rules_that_lead_to_rules_for_long_are_followed():
    """llguidance recurses as deep as they go, and once ended the process."""
    rules = "".join(f"r{i}: r{i + 1}\n" for i in range(650))
    assert only(greedy(grammar=Grammar("grammar", f'start: r0\n{rules}r650: "a"'))).text == "a"
    defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2800)} | {"d2800": {"const": 1}}
    schema = Grammar("json_schema", json.dumps({"$ref": "#/$defs/d0", "$defs": defs}))
    assert only(greedy(grammar=schema)).text == "1"


def test_a_model_without_an_end_token_takes_no_grammar():
    harness = Harness(loaded=tiny_model(eos_token_ids=frozenset()))
    with pytest.raises(InvalidRequestError, match="end-of-sequence"):
        harness.add(prompt_of(3), greedy(grammar=DIGITS))


def test_a_grammar_has_a_longest_length():
    with pytest.raises(InvalidRequestError, match="100000 characters, got 100001") as caught:
        Grammar("json_schema", "a" * 100_001, param="guided_json")
    assert caught.value.param == "guided_json"
