import pytest
import torch

from pyengine import ops
from tests.cuda.numbers import DTYPES
from tests.ops import reference
from tests.ops.test_rope_and_cache import make_arguments

SHAPES = [(64, 64, 16), (64, 32, 1), (80, 80, 4), (33, 14, 5), (128, 128, 32), (16, 0, 4)]


def copies(args):
    """The same arguments, queries, keys and values as views of one product again."""
    product = torch.cat([args["query"], args["key"], args["value"]], 1)
    parts = product.split([args[name].shape[1] for name in ("query", "key", "value")], 1)
    named = dict(zip(("query", "key", "value"), parts, strict=True))
    return {name: named.get(name, tensor.clone()) for name, tensor in args.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("head_size", "rotary_dim", "block_size"), SHAPES)
def test_it_gives_the_bits_of_the_cpu(backend, dtype, head_size, rotary_dim, block_size):
    """Products and sums are the same ones, and rounded at the same places."""
    got = make_arguments(dtype, head_size=head_size, rotary_dim=rotary_dim, block_size=block_size)
    want = copies(got)
    ops.rope_and_cache(**want)
    backend.rope_and_cache(*got.values())
    for name in want:
        assert torch.equal(got[name], want[name]), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_match_the_reference(backend, dtype):
    args = make_arguments(dtype)
    query = args["query"].clone()
    backend.rope_and_cache(*args.values())
    positions, cos_sin = args["positions"], args["cos_sin"]
    want = reference.rotate(query, positions, cos_sin)
    bound = reference.rotate_tolerance(query, positions, cos_sin, want, dtype)
    assert torch.all((args["query"].double() - want).abs() <= bound + 2**-24)


def test_blocks_may_lie_apart(backend):
    """A layer's part of a cache in which a block holds all layers."""
    args = make_arguments(torch.bfloat16, block_size=16)
    want = copies(args)
    ops.rope_and_cache(**want)
    caches = {}
    for name in ("key_cache", "value_cache"):
        layers = torch.full((len(args[name]), 3, *args[name].shape[1:]), -7.0).bfloat16()
        layers[:, 1] = args[name]
        caches[name] = layers
    views = {name: layers[:, 1] for name, layers in caches.items()}
    backend.rope_and_cache(*{**args, **views}.values())
    for name, layers in caches.items():
        assert torch.equal(layers[:, 1], want[name])
        assert torch.all(layers[:, [0, 2]] == -7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_that_begins_anywhere_gives_the_same_bits(backend, dtype):
    """Sixteen bytes are loaded at once only where they may be."""
    got = make_arguments(dtype)
    want = copies(got)
    backend.rope_and_cache(*want.values())
    for name in ("key_cache", "cos_sin"):
        memory = torch.empty(got[name].numel() + 1, dtype=got[name].dtype)
        got[name] = memory[1:].view(got[name].shape).copy_(got[name])
    backend.rope_and_cache(*got.values())
    for name in want:
        assert torch.equal(got[name], want[name]), name


def test_what_lies_nowhere_is_left_alone(backend):
    """The CPU refuses it; to ask a GPU would be to wait for it."""
    args = make_arguments(torch.bfloat16)
    args["positions"][:2] = torch.tensor([-1, 50])
    args["slot_mapping"][2:4] = torch.tensor([-2, args["key_cache"].shape[0] * 4])
    want = copies(args)
    want["positions"][:2] = 0
    want["slot_mapping"][:4] = -1
    ops.rope_and_cache(**want)
    want["query"][:2] = args["query"][:2]
    backend.rope_and_cache(*args.values())
    for name in ("query", "key_cache", "value_cache"):
        assert torch.equal(args[name], want[name]), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_does_not_depend_on_its_company(backend, dtype):
    together = make_arguments(dtype)
    alone = copies(together)
    backend.rope_and_cache(*together.values())
    shared = ("cos_sin", "key_cache", "value_cache")
    for i in range(9):
        token = {name: t if name in shared else t[i : i + 1] for name, t in alone.items()}
        backend.rope_and_cache(*token.values())
    for name in ("query", "key_cache", "value_cache"):
        assert torch.equal(together[name], alone[name]), name


def test_no_tokens_are_no_work(backend):
    args = make_arguments(tokens=4)
    none = {name: args[name][:0] for name in ("query", "key", "value", "positions", "slot_mapping")}
    before = args["key_cache"].clone()
    backend.rope_and_cache(*{**args, **none}.values())
    assert torch.equal(args["key_cache"], before)


def test_an_int8_cache_is_refused(backend):
    args = make_arguments(torch.bfloat16)
    for name in ("key_cache", "value_cache"):
        args[name] = reference.quantize_rows(args[name])
    with pytest.raises(RuntimeError, match="key_cache must not be int8 on a GPU: so far, int8"):
        backend.rope_and_cache(*args.values())
