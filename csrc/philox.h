// The noise of sampling: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011), a function from a key and a counter to 128 random bits, with no state.
#pragma once

#include "dispatch.h"

#include <cstdint>

namespace pyengine {

struct PhiloxCounter {
  uint32_t words[4];
};

struct PhiloxKey {
  uint32_t words[2];
};

PYENGINE_ANYWHERE constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const auto& [c0, c1, c2, c3] = counter.words;
    const auto& [k0, k1] = key.words;
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    counter = {{static_cast<uint32_t>(b >> 32) ^ c1 ^ k0, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ c3 ^ k1, static_cast<uint32_t>(a)}};
    key = {{k0 + 0x9E3779B9u, k1 + 0xBB67AE85u}};
  }
  return counter;
}

// The 53 bits of noise that belong to output token `output_index` of a request with this seed, as
// the upper bits of the number. The key is the seed, the counter the index, low words first; the
// bits are of the first two words of the block, the first one lowest.
PYENGINE_ANYWHERE constexpr uint64_t sampling_bits(int64_t seed, int64_t output_index) {
  const auto low = [](int64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](int64_t x) { return static_cast<uint32_t>(static_cast<uint64_t>(x) >> 32); };
  const auto block =
      philox4x32_10({{low(output_index), high(output_index), 0, 0}}, {{low(seed), high(seed)}});
  const uint64_t wide = static_cast<uint64_t>(block.words[1]) << 32 | block.words[0];
  return wide >> 11 << 11;
}

// The same as a uniform number in [0, 1), a multiple of 2^-53.
constexpr double sampling_noise(int64_t seed, int64_t output_index) {
  return static_cast<double>(sampling_bits(seed, output_index)) * 0x1p-64;
}

}  // namespace pyengine
