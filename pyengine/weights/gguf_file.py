"""Reads GGUF files: typed metadata, then tensors, in one file.

The format is described in the ggml repository (docs/gguf.md). Layout, all little-endian:

    magic "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata:  key string | type u32 | value                           (string: length u64, UTF-8)
    tensors:   name string | num dims u32 | dims u64 each | type u32 | offset u64
    padding to `general.alignment`, then the tensors' data; offsets count from there
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from pyengine.errors import ModelLoadError
from pyengine.weights.ggml_types import OTHER_TYPES, SUPPORTED_TYPES, TYPES_BY_ID, GGMLType

_T = TypeVar("_T")

_SUPPORTED_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4

# Metadata types: struct's letter of each scalar; strings and arrays are coded apart.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFTensor:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]  # outermost dimension first, as in PyTorch
    type: GGMLType
    start: int  # in bytes from the beginning of the file
    num_bytes: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


class GGUFFile:
    """One opened file: everything in its header, checked against the file's size.

    Attributes:
        metadata: key -> int, float, bool, str, or a list of these.
        tensors: name -> GGUFTensor, in the file's order.
        data: the file's bytes, mapped. Private and writable, as PyTorch asks of a buffer; nobody
            writes to it.

    Raises:
        ModelLoadError: not a GGUF file, cut short, inconsistent, or with tensors of a type that
            isn't supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if file.read(4) != b"GGUF":
                    raise ModelLoadError(f"{path}: not a GGUF file (it doesn't begin with 'GGUF')")
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelLoadError(f"{path}: can't be read: {error.strerror}") from error
        self._position = 4
        self._check_version()
        num_tensors, num_metadata = self._scalar("Q"), self._scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_metadata):
            self._read_metadata()
        entries = [self._read_tensor_entry() for _ in range(num_tensors)]
        self.tensors = self._place(entries)

    @overload
    def get(self, key: str, kind: type[_T]) -> _T | None: ...

    @overload
    def get(self, key: str, kind: type[_T], default: _T) -> _T: ...

    def get(self, key: str, kind: type[_T], default: _T | None = None) -> _T | None:
        """metadata[key] if it is there, checked to be of the kind int, float, bool, str or list.

        Raises:
            ModelLoadError: it is of another kind.
        """
        value = self.metadata.get(key, default)
        if value is None or type(value) is kind:
            return value
        raise self._broken(f"{key} must be of type {kind.__name__}, got {repr(value)[:100]}")

    def require(self, key: str, kind: type[_T]) -> _T:
        """metadata[key], checked as in get().

        Raises:
            ModelLoadError: it is missing, or of another kind.
        """
        value = self.get(key, kind)
        if value is None:
            raise self._broken(f"the key {key} is missing")
        return value

    def get_list(self, key: str, kind: type[_T]) -> list[_T] | None:
        """The list metadata[key] if it is there, checked to hold values of a kind.

        Raises:
            ModelLoadError: it isn't a list, or one of values of another kind.
        """
        values: list[_T] | None = self.get(key, list)
        if values and type(values[0]) is not kind:  # all are of one type in the file
            raise self._broken(f"{key} must be a list of {kind.__name__}, got {values[0]!r:.100}")
        return values

    def require_list(self, key: str, kind: type[_T]) -> list[_T]:
        """The list metadata[key], checked as in get_list().

        Raises:
            ModelLoadError: it is missing, or of another kind.
        """
        values = self.get_list(key, kind)
        if values is None:
            raise self._broken(f"the key {key} is missing")
        return values

    def _broken(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: broken GGUF file: {what}")

    def _check_version(self) -> None:
        version = self._scalar("I")
        if version in _SUPPORTED_VERSIONS:
            return
        if int.from_bytes(version.to_bytes(4, "big"), "little") in _SUPPORTED_VERSIONS:
            raise ModelLoadError(f"{self.path}: big-endian GGUF files aren't supported")
        supported = " and ".join(map(str, _SUPPORTED_VERSIONS))
        raise ModelLoadError(
            f"{self.path}: GGUF version {version} isn't supported, only {supported}"
        )

    def _advance(self, num_bytes: int) -> int:
        """Moves past so many bytes; returns where they begin."""
        start = self._position
        if num_bytes > len(self.data) - start:
            raise self._broken(
                f"the header is cut short: {num_bytes} bytes expected at {start}, "
                f"the file has {len(self.data)}"
            )
        self._position = start + num_bytes
        return start

    def _scalar(self, letter: str) -> Any:
        layout = struct.Struct("<" + letter)
        return layout.unpack_from(self.data, self._advance(layout.size))[0]

    def _string(self) -> str:
        length = self._scalar("Q")
        start = self._advance(length)
        return self._decode(self.data[start : start + length], start)

    def _decode(self, text: bytes, start: int) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise self._broken(f"the string at byte {start} isn't UTF-8") from error

    def _strings(self, count: int) -> list[str]:
        """What _string() would give so many times, in a tight loop: vocabularies are long."""
        data, size, position = self.data, len(self.data), self._position
        read_length = struct.Struct("<Q").unpack_from
        strings = []
        try:
            for _ in range(count):
                if size - position < 8:
                    break
                start = position + 8
                position = start + read_length(data, position)[0]
                strings.append(data[start:position].decode())
        except UnicodeDecodeError as error:
            raise self._broken(f"the string at byte {start} isn't UTF-8") from error
        if len(strings) < count or position > size:
            raise self._broken("the header is cut short in a list of strings")
        self._position = position
        return strings

    def _read_metadata(self) -> None:
        key, kind = self._string(), self._scalar("I")
        if key in self.metadata:
            raise self._broken(f"the key {key} occurs twice")
        self.metadata[key] = self._array(key) if kind == _ARRAY else self._value(key, kind)

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        raise self._broken(f"{key} has the unknown value type {kind}")

    def _array(self, key: str) -> list[Any]:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            return self._strings(count)
        if kind not in _SCALARS:
            raise self._broken(f"{key} is a list of the unknown value type {kind}")
        start = self._advance(count * struct.calcsize("<" + _SCALARS[kind]))
        return list(struct.unpack_from(f"<{count}{_SCALARS[kind]}", self.data, start))

    def _read_tensor_entry(self) -> tuple[str, tuple[int, ...], GGMLType, int]:
        """-> name, shape, type, offset in the data section."""
        name, num_dims = self._string(), self._scalar("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._broken(
                f"tensor {name} has {num_dims} dimensions, expected 1 to {_MAX_DIMS}"
            )
        shape = tuple(self._scalar("Q") for _ in range(num_dims))[::-1]
        type_id, offset = self._scalar("I"), self._scalar("Q")
        type_ = TYPES_BY_ID.get(type_id)
        if type_ is None:
            supported = ", ".join(known.name for known in SUPPORTED_TYPES)
            raise ModelLoadError(
                f"{self.path}: tensor {name} has the type "
                f"{OTHER_TYPES.get(type_id, f'number {type_id}')}, which isn't supported; "
                f"the supported types are {supported}"
            )
        if 0 in shape or shape[-1] % type_.block_values != 0:
            raise self._broken(
                f"tensor {name} has the shape {list(shape)}, but the rows of {type_.name} tensors "
                f"are a multiple of {type_.block_values} values long"
            )
        return name, shape, type_, offset

    def _place(
        self, entries: list[tuple[str, tuple[int, ...], GGMLType, int]]
    ) -> dict[str, GGUFTensor]:
        alignment = self.get("general.alignment", int, _DEFAULT_ALIGNMENT)
        if alignment < 8 or alignment & (alignment - 1):
            raise self._broken(
                f"general.alignment must be a power of two from 8 on, got {alignment}"
            )
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_, offset in entries:
            num_bytes = math.prod(shape) // type_.block_values * type_.block_bytes
            if name in tensors:
                raise self._broken(f"tensor {name} occurs twice")
            if offset % alignment != 0:
                raise self._broken(
                    f"tensor {name} begins at {offset}, which isn't a multiple of the alignment "
                    f"{alignment}"
                )
            if data_start + offset + num_bytes > len(self.data):
                raise self._broken(
                    f"the data is cut short: tensor {name} ends at byte "
                    f"{data_start + offset + num_bytes}, the file has {len(self.data)}"
                )
            tensors[name] = GGUFTensor(name, shape, type_, data_start + offset, num_bytes)
        return tensors
