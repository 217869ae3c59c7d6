import torch

from pyengine.engine.devices.packing import PackedTensors


def test_tensors_come_out_as_they_went_in():
    tensors = [
        torch.arange(5),
        torch.zeros(0, dtype=torch.int64),
        torch.tensor([1.5, float("nan")]),
        torch.arange(6, dtype=torch.int32).view(2, 3),
        torch.tensor([True, False, True]),
        torch.zeros(3, 0, dtype=torch.int32),
    ]
    packed = PackedTensors.pack(tensors, pin_memory=False)
    copies = packed.unpack(packed.memory.clone())
    for tensor, copy in zip(tensors, copies, strict=True):
        assert copy.dtype == tensor.dtype
        assert copy.shape == tensor.shape
        assert torch.equal(copy.nan_to_num(), tensor.nan_to_num())
        assert copy.is_contiguous()


def test_each_begins_where_vectors_of_sixteen_bytes_may():
    packed = PackedTensors.pack([torch.zeros(3), torch.zeros(1), torch.zeros(4)], pin_memory=False)
    begin = packed.memory.data_ptr()
    assert [t.data_ptr() - begin for t in packed.unpack(packed.memory)] == [0, 16, 32]
