// The ggml block formats that `dequantize` reads and `quantize` writes, with their numbers in GGUF files.
#pragma once

#include <cstdint>
#include <string>

namespace pyengine {

struct GgmlType {
  int64_t id;
  const char* name;
  int64_t block_size;   // elements in a block
  int64_t block_bytes;  // bytes of a block
  bool is_quantizable;  // `quantize` writes it
};

inline constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", 1, 4, false},       {1, "F16", 1, 2, false},       {2, "Q4_0", 32, 18, true},
    {3, "Q4_1", 32, 20, true},     {6, "Q5_0", 32, 22, false},    {7, "Q5_1", 32, 24, false},
    {8, "Q8_0", 32, 34, true},     {12, "Q4_K", 256, 144, false}, {13, "Q5_K", 256, 176, false},
    {14, "Q6_K", 256, 210, false}, {30, "BF16", 1, 2, false},
};

// nullptr if the type isn't supported.
inline const GgmlType* find_ggml_type(int64_t id) {
  for (const GgmlType& type : kGgmlTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

// "0 (F32), 1 (F16), ...", for messages: the types that are wanted.
template <typename IsWanted>
std::string list_ggml_types(const IsWanted& is_wanted) {
  std::string list;
  for (const GgmlType& type : kGgmlTypes) {
    if (!is_wanted(type)) continue;
    list += (list.empty() ? "" : ", ") + std::to_string(type.id) + " (" + type.name + ")";
  }
  return list;
}

}  // namespace pyengine
