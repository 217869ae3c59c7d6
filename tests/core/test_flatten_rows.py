"""The rows of a step, laid out one after another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine._loader import load_core

flatten_rows = load_core().flatten_rows


@st.composite
def rows(draw):
    block_size = draw(st.integers(1, 20))
    token_ids, first_positions, block_tables = [], [], []
    for _ in range(draw(st.integers(1, 5))):
        first = draw(st.integers(0, 50))
        fed = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40))
        num_blocks = -(-(first + len(fed)) // block_size) + draw(st.integers(0, 2))
        token_ids.append(fed)
        first_positions.append(first)
        block_tables.append(
            draw(st.lists(st.integers(0, 2**20), min_size=num_blocks, max_size=num_blocks))
        )
    return token_ids, first_positions, block_tables, block_size


@given(rows())
def test_every_token_has_its_position_and_its_slot(arguments):
    token_ids, first_positions, block_tables, block_size = arguments
    tokens, positions, slots, tables, starts, seq_lens = flatten_rows(*arguments)
    assert tokens.tolist() == [token for fed in token_ids for token in fed]
    assert starts.tolist() == [0, *np.cumsum([len(fed) for fed in token_ids])]
    assert seq_lens.tolist() == [
        first + len(fed) for first, fed in zip(first_positions, token_ids, strict=True)
    ]
    for row, (first, table) in enumerate(zip(first_positions, block_tables, strict=True)):
        here = slice(starts[row], starts[row + 1])
        expected = np.arange(first, seq_lens[row])
        assert positions[here].tolist() == expected.tolist()
        assert slots[here].tolist() == [
            table[p // block_size] * block_size + p % block_size for p in expected
        ]
        assert tables[row].tolist() == table + [0] * (tables.shape[1] - len(table))
    assert tokens.dtype == positions.dtype == slots.dtype == np.int64
    assert tables.dtype == starts.dtype == seq_lens.dtype == np.int32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1]], [4], [[7]], 4), "the block table of row 0 doesn't reach its tokens"),
        (([[1]], [-1], [[7]], 4), "the block table of row 0 doesn't reach its tokens"),
        (([[1]], [0, 1], [[7]], 4), "an item for each row"),
        (([[1]], [0], [[7]], 0), "block_size must be positive"),
    ],
)
def test_rows_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        flatten_rows(*arguments)


def test_what_is_not_a_list_of_ints_is_refused():
    with pytest.raises(TypeError, match="token_ids must hold lists"):
        flatten_rows([(1,)], [0], [[7]], 4)
    with pytest.raises(TypeError, match="int"):
        flatten_rows([["a"]], [0], [[7]], 4)
