"""The types of ggml's tensors: those that are read, and the names of the others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GGMLType:
    """How the values of a tensor are stored: in blocks of so many values and bytes."""

    name: str
    id: int
    block_values: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        return self.block_values > 1


SUPPORTED_TYPES = (
    GGMLType("F32", 0, 1, 4),
    GGMLType("F16", 1, 1, 2),
    GGMLType("BF16", 30, 1, 2),
    GGMLType("Q4_0", 2, 32, 18),
    GGMLType("Q4_1", 3, 32, 20),
    GGMLType("Q5_0", 6, 32, 22),
    GGMLType("Q5_1", 7, 32, 24),
    GGMLType("Q8_0", 8, 32, 34),
    GGMLType("Q4_K", 12, 256, 144),
    GGMLType("Q5_K", 13, 256, 176),
    GGMLType("Q6_K", 14, 256, 210),
)
TYPES_BY_ID = {type_.id: type_ for type_ in SUPPORTED_TYPES}
TYPES_BY_NAME = {type_.name: type_ for type_ in SUPPORTED_TYPES}

# Names of the others, for messages.
OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4",
}  # fmt: skip
