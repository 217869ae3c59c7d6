"""Rows of logits and ways to sample them, for the tests of every backend."""

import numpy as np
import torch
from hypothesis import strategies as st

from pyengine import ops
from tests.ops.sampling_reference import penalized, sampling_noise

INFINITY = float("inf")
NAN = float("nan")


def sample(
    logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=0, output_indices=0, op=ops.sample
):
    """The op, with options given once for all rows or as one number a row."""
    rows = logits.shape[0]

    def per_row(value, dtype):
        return torch.as_tensor(value, dtype=dtype).expand(rows).contiguous()

    return op(
        logits,
        per_row(temperature, torch.float32),
        per_row(top_k, torch.int32),
        per_row(top_p, torch.float32),
        per_row(min_p, torch.float32),
        per_row(seeds, torch.int64),
        per_row(output_indices, torch.int64),
    )


def draws(row, num_draws, **options):
    """Tokens drawn from one row of logits at output indices 0, 1, ..."""
    logits = torch.as_tensor(row, dtype=torch.float32).expand(num_draws, -1).contiguous()
    return sample(logits, output_indices=torch.arange(num_draws), **options).tolist()


@st.composite
def rows_with_ties(draw):
    """Logits of a few distinct values (some -inf), up to several blocks of the kernel long."""
    size = draw(st.integers(1, 700))
    levels = draw(st.lists(st.integers(-32, 32), min_size=1, max_size=12))
    values = np.float32(levels) / 4
    if draw(st.booleans()):
        values = np.append(values, np.float32(-INFINITY))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return np.append(rng.choice(values, size), np.float32(0))


def mixed_rows(rows, vocab_size):
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(0, 3, (rows, vocab_size)).astype(np.float32))
    options = {
        "temperature": rng.choice([0.0, 0.5, 1.0, 1.7], rows),
        "top_k": rng.choice([0, 1, 50, 1000], rows),
        "top_p": rng.choice([1.0, 0.9, 0.3], rows),
        "min_p": rng.choice([0.0, 0.01, 0.2], rows),
        "seeds": rng.integers(-(2**62), 2**62, rows),
        "output_indices": rng.integers(0, 1000, rows),
    }
    return logits, options


def chi_square(counts, probs):
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def sample_arguments_with(position, value):
    """The op's arguments for two rows of four logits, one of them replaced."""
    int64 = torch.zeros(2, dtype=torch.int64)
    arguments = [torch.zeros(2, 4), torch.zeros(2), int64.int(), torch.ones(2), torch.zeros(2)]
    arguments += [int64, int64]
    arguments[position] = value
    return arguments


def assert_draws_match(tokens, want, seed, slack):
    """The tokens at output indices 0, 1, ... are those of the reference's distribution, at a noise
    that is off by `slack` at most."""
    for index, token in enumerate(tokens):
        noise = sampling_noise(seed, index)
        assert want.draw(noise - slack) <= token <= want.draw(noise + slack)


# An argument's position, a value that is refused, and what is said then.
SAMPLE_REFUSALS = [
    (0, torch.zeros(2, 4).bfloat16(), "logits must be Float, got BFloat16"),
    (0, torch.zeros(8), "logits must have 2 dimensions, got shape \\[8\\]"),
    (0, torch.zeros(2, 0), "logits must have a vocabulary, got shape \\[2, 0\\]"),
    (0, torch.zeros(4, 2).t(), "logits must be contiguous"),
    (1, torch.zeros(3), "temperature must have 2 elements, got 3"),
    (2, torch.zeros(2), "top_k must be Int, got Float"),
    (3, torch.zeros(2, 1), "top_p must have 1 dimensions, got shape \\[2, 1\\]"),
    (4, torch.zeros(2).double(), "min_p must be Float, got Double"),
    (5, torch.zeros(2, dtype=torch.int32), "seeds must be Long, got Int"),
    (6, torch.zeros(4, dtype=torch.int64)[::2], "output_indices must be contiguous"),
]


def penalty_arguments(histories, penalties):
    """The op's arguments after `logits`; histories are (prompt, output) lists, one a row."""
    flat = [token for prompt, output in histories for token in prompt + output]
    starts = np.cumsum([0] + [len(prompt) + len(output) for prompt, output in histories])
    return (
        torch.tensor(flat, dtype=torch.int64),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([len(prompt) for prompt, _ in histories], dtype=torch.int32),
        *torch.tensor(penalties, dtype=torch.float32).reshape(-1, 3).t().contiguous(),
    )


def int64(values):
    return torch.tensor(values, dtype=torch.int64)


def assert_logprobs_match(logits, token_ids, num_top, op=ops.token_logprobs):
    """The op agrees with a log-softmax and a sort in float64."""
    logprob, rank, top_ids, top_logprobs = op(logits, token_ids, num_top)
    want = logits.double().log_softmax(-1)
    # One rounding to float32, and 2 ulp of exp in each term of the sum.
    bound = {"rtol": 2.0**-24, "atol": 2.0**-22}
    at_tokens = want.gather(1, token_ids[:, None])
    torch.testing.assert_close(logprob.double(), at_tokens[:, 0], **bound)
    assert torch.equal(rank, (logits > logits.gather(1, token_ids[:, None])).sum(1).int() + 1)
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :num_top]
    assert torch.equal(top_ids, order)
    torch.testing.assert_close(top_logprobs.double(), want.gather(1, order), **bound)


def logprobs_arguments_with(replaced):
    """The op's arguments for a row of four logits, those in `replaced` by these."""
    good = {"logits": torch.zeros(1, 4), "token_ids": int64([1]), "num_top": 2}
    return ({**good, **replaced}).values()


LOGPROBS_REFUSALS = [
    ({"logits": torch.zeros(1, 4).double()}, "logits must be Float, got Double"),
    ({"logits": torch.zeros(1, 0)}, "logits must have a vocabulary"),
    ({"token_ids": torch.zeros(1)}, "token_ids must be Long, got Float"),
    ({"token_ids": int64([1, 2])}, "token_ids must have 1 elements, got 2"),
    ({"num_top": 5}, "num_top must be in \\[0, 4\\], the vocabulary's size, got 5"),
    ({"num_top": -1}, "num_top must be in \\[0, 4\\], the vocabulary's size, got -1"),
]


def penalty_rows(vocab_size):
    """Rows of prompt, output, and (repetition, presence, frequency)."""
    tokens = st.lists(st.integers(0, vocab_size - 1), max_size=20)
    repetition, presence = st.sampled_from([1.0, 0.5, 1.3, 2.0]), st.sampled_from([0, 1.5, -2, 0.1])
    amounts = st.tuples(repetition, presence, st.floats(-2, 2))
    return st.lists(st.tuples(tokens, tokens, amounts), min_size=1, max_size=6)


def assert_penalties_match(rows, vocab_size, op=ops.apply_penalties_):
    """The op gives the bits of the reference, for rows as of penalty_rows()."""
    shape = (len(rows), vocab_size)
    logits = np.random.default_rng(len(rows)).normal(0, 3, shape).astype(np.float32)
    got = torch.from_numpy(logits.copy())
    op(got, *penalty_arguments([row[:2] for row in rows], [row[2] for row in rows]))
    want = [
        penalized(logits[r], prompt, output, *np.float32(amounts))
        for r, (prompt, output, amounts) in enumerate(rows)
    ]
    assert np.array_equal(got.numpy(), np.array(want))


def penalty_arguments_with(position, value):
    """The op's arguments for a row of four logits and a history of three tokens, one replaced."""
    arguments = [torch.zeros(1, 4), *penalty_arguments([([0], [1, 2])], [(2.0, 1.0, 1.0)])]
    arguments[position] = value
    return arguments


PENALTY_REFUSALS = [
    (0, torch.zeros(1, 4).double(), "logits must be Float, got Double"),
    (0, torch.zeros(4), "logits must have 2 dimensions, got shape \\[4\\]"),
    (0, torch.zeros(1, 8)[:, ::2], "logits must be contiguous"),
    (0, torch.zeros(1, 0), "logits must have a vocabulary, got shape \\[1, 0\\]"),
    (1, torch.tensor([1, 2, 3], dtype=torch.int32), "token_ids must be Long, got Int"),
    (2, torch.tensor([0], dtype=torch.int32), "token_start_loc must have 2 elements, got 1"),
    (3, torch.zeros(2, dtype=torch.int32), "num_prompt_tokens must have 1 elements, got 2"),
    (4, torch.ones(2), "repetition must have 1 elements, got 2"),
    (5, torch.ones(1).double(), "presence must be Float, got Double"),
    (6, torch.ones(1, 1), "frequency must have 1 dimensions"),
]
