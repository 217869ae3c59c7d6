"""The demo model says what transformers says with the same weights."""

import pytest
import torch
import transformers

from pyengine import LLM, SamplingParams
from pyengine.weights import open_checkpoint

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a land far away,",
    "Water boils at",
    "def fibonacci(n):",
    "The quick brown fox",
    "In 1969, humans first",
    "A recipe for pancakes:",
    "The meaning of life is",
    "import numpy as np\n",
    "Dear Sir or Madam,",
    "The three laws of motion are",
    "SELECT name FROM users WHERE",
    "To be, or not to be,",
    "Photosynthesis is the process",
    "1, 1, 2, 3, 5, 8,",
    "Q: What is the largest ocean?\nA:",
    "She opened the door and",
    "La capitale de l'Italie est",
    "The opposite of hot is",
    "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
]
NUM_TOKENS = 24
# Two float32 implementations that sum in another order differ by about this much here.
NEAR_TIE = 1e-3


@pytest.fixture(scope="module")
def llm(demo_model_path) -> LLM:
    return LLM(demo_model_path, dtype="float32", quantization="none", num_kv_blocks=256)


@pytest.fixture(scope="module")
def quantized_llm(demo_model_path) -> LLM:
    return LLM(demo_model_path, num_kv_blocks=256)


@pytest.fixture(scope="module")
def reference(demo_model_path) -> transformers.LlamaForCausalLM:
    checkpoint = open_checkpoint(demo_model_path)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**checkpoint.config))
    weights = {name: checkpoint.load(name, torch.float32) for name in checkpoint.names()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    # Not a weight, so the meta device has left it empty.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


def test_greedy_tokens_of_twenty_prompts_agree_with_transformers(llm, reference):
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    num_tokens = num_equal = 0
    for output in llm.generate(PROMPTS, params):
        token_ids = output.outputs[0].token_ids
        num_prompt = len(output.prompt_token_ids)
        with torch.no_grad():
            fed = torch.tensor([[*output.prompt_token_ids, *token_ids]])
            # Ours are fed back to it, so one near-tie does not hide what comes after it.
            logits = reference(fed).logits[0, num_prompt - 1 : -1]
        expected = logits.argmax(-1).tolist()
        for row, (mine, theirs) in enumerate(zip(token_ids, expected, strict=True)):
            gap = float(logits[row, theirs] - logits[row, mine])
            assert gap < NEAR_TIE, (
                f"after {output.prompt!r} and {row} tokens: {mine}, but transformers says "
                f"{theirs}, its logit {gap} greater"
            )
            num_equal += mine == theirs
        num_tokens += len(token_ids)
    print(f"\n{num_equal} of {num_tokens} greedy tokens equal those of transformers")
    assert num_tokens > 300


def test_log_probabilities_are_those_of_transformers(llm, reference):
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=5, prompt_logprobs=0)
    [output] = llm.generate(PROMPTS[0], params)
    completion = output.outputs[0]
    fed = torch.tensor([[*output.prompt_token_ids, *completion.token_ids]])
    with torch.no_grad():
        expected = reference(fed).logits[0].double().log_softmax(-1)
    num_prompt = len(output.prompt_token_ids)
    for position in range(1, num_prompt):
        mine = output.prompt_logprobs[position]
        theirs = float(expected[position - 1, output.prompt_token_ids[position]])
        assert mine.logprob == pytest.approx(theirs, abs=1e-3)
    for k, mine in enumerate(completion.logprobs):
        row = expected[num_prompt - 1 + k]
        assert mine.top_logprobs == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)
        assert mine.logprob == pytest.approx(float(row[mine.token_id]), abs=1e-3)


def test_computing_with_quantized_weights_says_nearly_the_same(llm, quantized_llm):
    """Activations of 8 bits and a dtype of 8 bits: the likeliest token changes near ties only."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    num_tokens, difference = 0, 0.0
    outputs = [model.generate(PROMPTS, params) for model in (llm, quantized_llm)]
    for exact, quantized in zip(*outputs, strict=True):
        positions = range(1, len(exact.prompt_token_ids))
        for k in positions:
            difference += exact.prompt_logprobs[k].logprob - quantized.prompt_logprobs[k].logprob
        num_tokens += len(positions)
    assert abs(difference / num_tokens) < 0.03


def test_the_demo_answers_in_sensible_english(llm, quantized_llm):
    question = [{"role": "user", "content": "What is the capital of Japan?"}]
    for model in (llm, quantized_llm):
        answer = model.chat(question, SamplingParams(temperature=0, max_tokens=32))
        assert answer.outputs[0].text == "The capital of Japan is Tokyo."
        assert answer.outputs[0].finish_reason == "stop"
