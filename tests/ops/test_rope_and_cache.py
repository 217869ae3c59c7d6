import pytest
import torch

from pyengine import ops
from tests.ops import reference

DTYPES = [torch.float32, torch.bfloat16]


def make_arguments(
    dtype=torch.float32, tokens=9, heads=6, kv_heads=2, head_size=64, rotary_dim=64, block_size=4
):
    """Query, key and value as views of one product; slots at random, one of them -1."""
    generator = torch.Generator().manual_seed(0)
    num_blocks = tokens // block_size + 2
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_size, generator=generator).to(dtype)
    query, key, value = qkv.split([heads, kv_heads, kv_heads], 1)
    slots = torch.randperm(num_blocks * block_size, generator=generator)[:tokens]
    slots[tokens // 2] = -1
    cache_shape = (num_blocks, kv_heads, block_size, head_size)
    return {
        "query": query,
        "key": key,
        "value": value,
        "positions": torch.randint(0, 50, (tokens,), generator=generator),
        "cos_sin": torch.randn(50, rotary_dim, generator=generator),
        "key_cache": torch.randn(cache_shape, generator=generator).to(dtype),
        "value_cache": torch.randn(cache_shape, generator=generator).to(dtype),
        "slot_mapping": slots,
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("head_size", "rotary_dim", "block_size"),
    [(64, 64, 16), (64, 32, 1), (80, 80, 4), (33, 14, 5), (128, 128, 32), (16, 0, 4), (2, 2, 3)],
)
def test_rotates_queries_and_writes_keys_and_values_to_their_slots(
    dtype, head_size, rotary_dim, block_size
):
    args = make_arguments(dtype, head_size=head_size, rotary_dim=rotary_dim, block_size=block_size)
    query, key, value = (args[name].clone() for name in ("query", "key", "value"))
    positions, cos_sin, slots = args["positions"], args["cos_sin"], args["slot_mapping"]
    want_keys, want_values = args["key_cache"].double(), args["value_cache"].clone()
    bounds = torch.zeros_like(want_keys)

    ops.rope_and_cache(**args)

    want = reference.rotate(query, positions, cos_sin)
    bound = reference.rotate_tolerance(query, positions, cos_sin, want, dtype)
    assert torch.all((args["query"].double() - want).abs() <= bound)

    want = reference.rotate(key, positions, cos_sin)
    bound = reference.rotate_tolerance(key, positions, cos_sin, want, dtype)
    reference.write_slots(want_keys, want, slots)
    reference.write_slots(bounds, bound, slots)
    assert torch.all((args["key_cache"].double() - want_keys).abs() <= bounds)

    reference.write_slots(want_values, value, slots)
    assert torch.equal(args["value_cache"], want_values)
    assert torch.equal(args["key"], key)
    assert torch.equal(args["value"], value)


def with_int8_cache(args):
    caches = {name: reference.quantize_rows(args[name]) for name in ("key_cache", "value_cache")}
    return {**args, **caches}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("head_size", "rotary_dim", "block_size"), [(64, 64, 16), (33, 14, 5), (256, 0, 4), (2, 2, 3)]
)
def test_an_int8_cache_holds_each_row_with_its_own_scale(dtype, head_size, rotary_dim, block_size):
    args = with_int8_cache(
        make_arguments(dtype, head_size=head_size, rotary_dim=rotary_dim, block_size=block_size)
    )
    args["value"][3] *= 1000
    args["value"][5] = 0
    want = {
        "key_cache": reference.rotate(args["key"], args["positions"], args["cos_sin"]),
        "value_cache": args["value"].double(),
    }
    before = {name: args[name].clone() for name in want}

    ops.rope_and_cache(**args)

    for name, rows in want.items():
        expected = reference.dequantize_rows(before[name])
        bounds = torch.zeros_like(expected)
        # Half a unit of the last place, and what the rotation and the scale round away.
        bound = (0.5 / 127 + 1e-5) * rows.abs().amax(-1, keepdim=True).expand_as(rows)
        reference.write_slots(expected, rows, args["slot_mapping"])
        reference.write_slots(bounds, bound, args["slot_mapping"])
        got = reference.dequantize_rows(args[name])
        assert torch.all((got - expected).abs() <= bounds), name
        assert args[name][..., :head_size].abs().max() == 127


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_nan_in_an_int8_cache(poison):
    args = with_int8_cache(make_arguments(tokens=2))
    args["value"][0, 1, 5] = poison
    args["slot_mapping"] = torch.tensor([4, 5])
    ops.rope_and_cache(**args)
    values = reference.dequantize_rows(args["value_cache"])[1]
    assert values[1, 0].isnan().all()
    assert values[0, 0].isfinite().all()
    assert values[:, 1].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8_cache", [False, True])
def test_a_token_does_not_depend_on_its_company(dtype, int8_cache, with_num_threads):
    together = make_arguments(dtype, tokens=300)
    if int8_cache:
        together = with_int8_cache(together)
    alone = {name: tensor.clone() for name, tensor in together.items()}
    with_num_threads(2)
    ops.rope_and_cache(**together)
    for i in range(300):
        token = {
            name: tensor if name in ("cos_sin", "key_cache", "value_cache") else tensor[i : i + 1]
            for name, tensor in alone.items()
        }
        ops.rope_and_cache(**token)
    for name in ("query", "key_cache", "value_cache"):
        assert torch.equal(together[name], alone[name]), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": torch.zeros(9, 6)}, "query must have 3 dimensions"),
        ({"query": torch.zeros(9, 6, 64).double()}, "query must be Float or BFloat16, got Double"),
        ({"query": torch.zeros(9, 64, 6).transpose(1, 2)}, "query must be contiguous in its last"),
        ({"key": torch.zeros(8, 2, 64)}, r"key must have shape \[9, 2, 64\], got \[8, 2, 64\]"),
        ({"key": torch.zeros(9, 2, 64).bfloat16()}, "key must have the dtype of query"),
        ({"value": torch.zeros(9, 3, 64)}, r"value must have shape \[9, 2, 64\]"),
        ({"value": torch.zeros(9, 2, 128)[..., ::2]}, "value must be contiguous in its last two"),
        ({"positions": torch.zeros(9).int()}, "positions must be Long, got Int"),
        ({"positions": torch.zeros(8).long()}, "positions must have 9 elements, got 8"),
        ({"positions": torch.full((9,), 50)}, r"positions\[0\] must be in \[0, 50\), got 50"),
        ({"positions": torch.full((9,), -1)}, r"positions\[0\] must be in \[0, 50\), got -1"),
        ({"cos_sin": torch.zeros(50, 64).double()}, "cos_sin must be Float, got Double"),
        ({"cos_sin": torch.zeros(50, 63)}, "cos_sin must have an even last dimension of at most"),
        ({"cos_sin": torch.zeros(50, 66)}, "cos_sin must have an even last dimension of at most"),
        ({"key_cache": torch.zeros(4, 2, 4, 32)}, "key_cache must have query's head size 64"),
        ({"value_cache": torch.zeros(4, 2, 5, 64)}, r"value_cache must have shape \[4, 2, 4, 64\]"),
        ({"slot_mapping": torch.zeros(9).int()}, "slot_mapping must be Long, got Int"),
        (
            {"slot_mapping": torch.full((9,), 16)},
            r"slot_mapping\[0\] must be in \[-1, 16\), got 16",
        ),
        (
            {"slot_mapping": torch.full((9,), -2)},
            r"slot_mapping\[0\] must be in \[-1, 16\), got -2",
        ),
    ],
)
def test_a_bad_argument_is_named_and_nothing_is_written(arguments, message):
    args = {**make_arguments(), **arguments}
    before = {name: tensor.clone() for name, tensor in args.items()}
    with pytest.raises(RuntimeError, match=message):
        ops.rope_and_cache(**args)
    assert all(torch.equal(args[name], before[name]) for name in args)


@pytest.mark.parametrize("dtype", DTYPES)
def test_passes_opcheck(dtype):
    args = {name: tensor.clone() for name, tensor in make_arguments(dtype).items()}
    torch.library.opcheck(torch.ops.pyengine.rope_and_cache, tuple(args.values()))
