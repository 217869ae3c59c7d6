"""The perplexity tool, on a model whose log-probabilities can be had another way."""

import math

import pytest
import torch

from benchmarks.perplexity import Scores, score, windows_of
from pyengine.config import EngineConfig
from pyengine.engine import Engine
from pyengine.llm import LLM
from tests.engine.harness import prompt_of
from tests.models.test_llama import logits_of
from tests.tiny import tiny_model


@pytest.fixture
def llm() -> LLM:
    llm = LLM.__new__(LLM)
    llm._engine = Engine(tiny_model(), EngineConfig(model="tiny", num_kv_blocks=99))
    llm._request_ids = iter(range(99))
    return llm


def test_windows_do_not_overlap_and_the_rest_is_left_out():
    assert windows_of(range(11), [], 3, None) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert windows_of(range(11), [], 3, 2) == [[0, 1, 2], [3, 4, 5]]


def test_the_prefix_takes_the_place_of_the_first_tokens_of_every_window():
    assert windows_of([9, 1, 2, 3, 4, 5, 6], [9], 3, None) == [[9, 1, 2], [9, 4, 5]]


def test_a_text_of_less_than_two_windows_is_refused():
    with pytest.raises(ValueError, match="at least 6 tokens, got 5"):
        windows_of(range(5), [], 3, None)


def test_the_second_half_of_each_window_is_scored_without_its_first_token(llm):
    windows = windows_of(prompt_of(100), [], 16, None)
    scores = score(llm, windows)
    expected, likeliest = [], []
    for window in windows:
        logprobs = logits_of(tiny_model().model, window, [16], 16).log_softmax(-1)
        # The logits after token 8 are about token 9, the first that is scored.
        expected += [float(logprobs[i - 1, window[i]]) for i in range(9, 16)]
        likeliest += logprobs[8:15].argmax(-1).tolist()
    assert scores.logprobs == pytest.approx(expected, abs=1e-5)
    assert scores.top_token_ids == likeliest
    assert scores.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-5)


def test_the_figures_are_arithmetic_on_the_scores():
    scores = Scores([math.log(0.5), math.log(0.125)] * 50, [1, 2] * 50)
    assert scores.perplexity == pytest.approx(4)
    deviation = float(torch.tensor(scores.logprobs).std(correction=0))
    assert scores.standard_error == pytest.approx(4 * deviation / 99**0.5, rel=1e-5)
    assert scores.agreement([1, 3] * 50) == 0.5
    with pytest.raises(ValueError, match="reference has 3 tokens, this run 100"):
        scores.agreement([1, 2, 3])
