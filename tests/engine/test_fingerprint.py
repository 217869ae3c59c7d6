"""The fingerprint changes when the numbers can, and not otherwise."""

import torch

from pyengine import ops
from pyengine.config import EngineConfig
from pyengine.engine import loading
from pyengine.engine.loading import fingerprint, load


def test_it_names_weights_dtype_instruction_set_and_kernels(monkeypatch):
    seen = {fingerprint("weights", torch.float32, torch.float32, "none")}
    seen.add(fingerprint("others", torch.float32, torch.float32, "none"))
    seen.add(fingerprint("weights", torch.bfloat16, torch.bfloat16, "none"))
    seen.add(fingerprint("weights", torch.float32, torch.int8, "none"))
    seen.add(fingerprint("weights", torch.float32, torch.float32, "auto"))
    monkeypatch.setattr(ops, "isa_name", lambda: "another")
    seen.add(fingerprint("weights", torch.float32, torch.float32, "none"))
    monkeypatch.setattr(loading, "ops_digest", lambda: "recompiled")
    seen.add(fingerprint("weights", torch.float32, torch.float32, "none"))
    assert len(seen) == 7
    assert all(name.startswith("fp_") for name in seen)


def test_options_that_change_no_bit_leave_it(demo_model_path):
    plain = load(EngineConfig(model=str(demo_model_path)))
    other = load(EngineConfig(model=str(demo_model_path), max_num_batched_tokens=7, block_size=4))
    assert plain.fingerprint == other.fingerprint == fingerprint_of(plain)


def test_computing_with_quantized_weights_or_not_changes_it(demo_model_path):
    quantized = load(EngineConfig(model=str(demo_model_path)))
    dequantized = load(EngineConfig(model=str(demo_model_path), quantization="none"))
    assert quantized.fingerprint != dequantized.fingerprint


def fingerprint_of(loaded) -> str:
    from pyengine.weights import open_checkpoint, resolve_model

    digest = open_checkpoint(resolve_model(loaded.name)).digest()
    return fingerprint(digest, loaded.dtype, loaded.kv_cache_dtype, "auto")
