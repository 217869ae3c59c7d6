"""All layers in one call give the bits of the layers one by one."""

import gc
import weakref

import pytest
import torch

from pyengine import ops
from pyengine.models import ModelConfig, load_model
from pyengine.models.layers import AttentionInputs, KVCache, new_kv_cache
from tests.tiny import CONFIG, RandomWeights

BLOCK_SIZE = 4
NUM_BLOCKS = 40

MODELS = {
    "plain": {},
    "three heads a group": {"num_attention_heads": 6, "hidden_size": 96},
    "a window": {"sliding_window": 5},
    "odd sizes": {"intermediate_size": 77, "head_dim": 18},
    "quantized": {},
    "quantized with biases": {"attention_bias": True},
}
# Steps of (tokens fed, tokens before them) for each sequence: a prefill, chunks, decodes, a mix.
STEPS = [
    [(9, 0), (1, 0), (13, 0)],
    [(1, 9), (7, 1), (1, 13)],
    [(1, 10), (1, 8), (1, 14)],
]
# Of how many tokens of each sequence the hidden states are wanted.
WANTED = [[2, 0, 13], None, [0, 1, 1]]


def inputs_of(step: list[tuple[int, int]]) -> AttentionInputs:
    lengths = torch.tensor([fed for fed, _ in step])
    positions = torch.cat([torch.arange(before, before + fed) for fed, before in step])
    per_sequence = NUM_BLOCKS // len(step)
    tables = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(3))[
        : per_sequence * len(step)
    ].view(len(step), per_sequence)
    sequence = torch.repeat_interleave(torch.arange(len(step)), lengths)
    return AttentionInputs(
        positions=positions,
        slot_mapping=tables[sequence, positions // BLOCK_SIZE] * BLOCK_SIZE
        + positions % BLOCK_SIZE,
        block_tables=tables.int(),
        query_start_loc=torch.cat([torch.zeros(1), lengths.cumsum(0)]).int(),
        seq_lens=torch.tensor([fed + before for fed, before in step], dtype=torch.int32),
    )


def tiny(dtype: torch.dtype, *, is_quantized: bool = False, **changes):
    config = ModelConfig.from_dict(CONFIG | changes)
    return load_model(config, RandomWeights(config, is_quantized=is_quantized), dtype, 64)


def cache_of(model, dtype: torch.dtype) -> KVCache:
    c = model.config
    cache = new_kv_cache(c.num_layers, NUM_BLOCKS, c.num_kv_heads, BLOCK_SIZE, c.head_size, dtype)
    cache.keys.zero_()
    cache.values.zero_()
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_one_call_gives_the_bits_of_the_layers_one_by_one(name, dtype):
    model = tiny(dtype, is_quantized="quantized" in name, **MODELS[name])
    caches = [cache_of(model, dtype), cache_of(model, dtype)]
    for number, step in enumerate(STEPS):
        inputs = inputs_of(step)
        num_tokens = len(inputs.positions)
        torch.manual_seed(number)
        residuals = [torch.randn(num_tokens, model.config.hidden_size).to(dtype)] * 2
        residuals[1] = residuals[0].clone()
        wanted = WANTED[number]
        fused = model.decoder(residuals[0], inputs, caches[0], wanted)
        layerwise = model.layerwise(residuals[1], inputs, caches[1], wanted)
        assert torch.equal(fused, layerwise)
        assert len(fused) == (num_tokens if wanted is None else sum(wanted))
        assert torch.equal(caches[0].keys, caches[1].keys)
        assert torch.equal(caches[0].values, caches[1].values)


def test_a_step_of_no_tokens_changes_nothing():
    model = tiny(torch.float32)
    cache = cache_of(model, torch.float32)
    hidden = model.decoder(torch.empty(0, model.config.hidden_size), inputs_of([(0, 0)]), cache)
    assert hidden.shape == (0, model.config.hidden_size)
    assert not cache.keys.any()


def call_with(**changes) -> None:
    model = tiny(torch.float32)
    inputs, cache = inputs_of(STEPS[0]), cache_of(model, torch.float32)
    arguments = {
        "residual": torch.zeros(23, model.config.hidden_size),
        "keys": cache.keys,
        "values": cache.values,
        **vars(inputs),
    } | changes
    residual = arguments.pop("residual")
    cache = KVCache(arguments.pop("keys"), arguments.pop("values"))
    model.decoder(residual, AttentionInputs(**arguments), cache)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"residual": torch.zeros(23, 65)}, r"residual must have shape \[23, 64\]"),
        ({"residual": torch.zeros(23, 64).bfloat16()}, "residual must have the dtype of norms"),
        ({"positions": torch.zeros(22, dtype=torch.int64)}, "positions must have 23 elements"),
        ({"positions": torch.full((23,), 64)}, r"positions\[0\] must be in \[0, 64\), got 64"),
        ({"slot_mapping": torch.full((23,), 160)}, r"slot_mapping\[0\] must be in \[-1, 160\)"),
        ({"keys": torch.zeros(40, 2, 2, 4, 15)}, r"key_cache must have shape \[40, 2, 2, 4, 16\]"),
        ({"values": torch.zeros(40, 1, 2, 4, 16)}, r"value_cache must have shape \[40, 2, 2, 4"),
        (
            {"query_start_loc": torch.tensor([0, 9, 10, 22], dtype=torch.int32)},
            "query_start_loc must end at the 23 tokens",
        ),
        (
            {"block_tables": torch.full((3, 13), 40, dtype=torch.int32)},
            r"block_tables\[0, 0\] must be in \[0, 40\), got 40",
        ),
    ],
)
def test_bad_inputs_are_refused_by_name(changes, message):
    call_with()
    with pytest.raises(RuntimeError, match=message):
        call_with(**changes)


def empty_decoder(**changes) -> int:
    arguments = {
        "cos_sin": torch.zeros(8, 16),
        "norms": [torch.ones(64)] * 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_size": 16,
        "intermediate_size": 96,
        "scale": 0.25,
        "sliding_window": 0,
        "eps": 1e-5,
    }
    return ops.decoder_create(**arguments | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"norms": [torch.ones(64)] * 2},
            "norms must be two for each layer, at least one, and the last, got 2",
        ),
        ({"norms": [torch.ones(64)] * 2 + [torch.ones(63)]}, "norms must have 64 elements"),
        ({"num_kv_heads": 3}, r"num_heads must be a multiple of num_kv_heads \(3\), got 4"),
        ({"head_size": 257}, r"head_size must be in \[1, 256\], got 257"),
        ({"intermediate_size": 0}, "intermediate_size must be positive, got 0"),
    ],
)
def test_a_decoder_of_impossible_shape_is_refused(changes, message):
    with pytest.raises(RuntimeError, match=message):
        empty_decoder(**changes)


def test_a_decoder_takes_its_own_projections_alone():
    decoder = empty_decoder()
    weights = [ops.pack_linear_weight(torch.zeros(128, 64))]
    with pytest.raises(RuntimeError, match="num_outputs must add up to 128"):
        ops.decoder_add_projection(decoder, weights, [100], [ops.NOT_QUANTIZED], None)
    with pytest.raises(RuntimeError, match="packed_weight must be for 64 inputs"):
        ops.decoder_add_projection(
            decoder,
            [ops.pack_linear_weight(torch.zeros(128, 63))],
            [128],
            [ops.NOT_QUANTIZED],
            None,
        )
    ops.decoder_add_projection(decoder, weights, [128], [ops.NOT_QUANTIZED], None)
    cache = torch.zeros(1, 1, 2, 4, 16)
    step = [torch.zeros(1, dtype=torch.int64)] * 2
    step += [torch.zeros(1, 1).int(), torch.tensor([0, 1]).int(), torch.ones(1).int()]
    with pytest.raises(RuntimeError, match="the decoder lacks projections: it has 1 for 1 layers"):
        ops.decoder_run(decoder, torch.zeros(1, 64), *step, cache, cache.clone(), None, 1)
    ops.decoder_destroy(decoder)
    with pytest.raises(RuntimeError, match=f"decoder {decoder} doesn't exist"):
        ops.decoder_run(decoder, torch.zeros(1, 64), *step, cache, cache.clone(), None, 1)


def test_a_model_that_is_dropped_gives_its_weights_back():
    model = tiny(torch.float32)
    number = model.decoder._number
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    with pytest.raises(RuntimeError, match=f"decoder {number} doesn't exist"):
        ops.decoder_add_projection(number, [torch.zeros(1)], [1], [ops.NOT_QUANTIZED], None)
