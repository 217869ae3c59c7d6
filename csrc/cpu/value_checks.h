// Checks of what index tensors hold, where reading them costs no synchronization.
#pragma once

#include <cstdint>

#include <torch/headeronly/util/Exception.h>

namespace pyengine {

// offsets [num_items + 1]: from 0, not decreasing, up to `end` at most.
inline void check_offsets(const char* name, const int32_t* offsets, int64_t num_items,
                          int64_t end) {
  STD_TORCH_CHECK(offsets[0] == 0, name, "[0] must be 0, got ", offsets[0]);
  for (int64_t i = 0; i < num_items; ++i) {
    STD_TORCH_CHECK(offsets[i] <= offsets[i + 1], name, " must not decrease, got ", offsets[i],
                    " before ", offsets[i + 1], " at index ", i + 1);
  }
  STD_TORCH_CHECK(offsets[num_items] <= end, name, " must end at ", end, " at most, got ",
                  offsets[num_items]);
}

inline void check_token_ids(const int64_t* token_ids, int64_t size, int64_t vocab_size) {
  for (int64_t i = 0; i < size; ++i) {
    STD_TORCH_CHECK(token_ids[i] >= 0 && token_ids[i] < vocab_size, "token_ids[", i,
                    "] must be in [0, ", vocab_size, "), the vocabulary, got ", token_ids[i]);
  }
}

}  // namespace pyengine
