// The noise of sampling: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011), a function from a key and a counter to 128 random bits, with no state.
#pragma once

#include <array>
#include <cstdint>

namespace pyengine {

constexpr std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                                std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// The uniform number in [0, 1), a multiple of 2^-53, that belongs to output token `output_index`
// of a request with this seed. The key is the seed, the counter the index, low words first; the
// number's bits are the first two words of the block, the first one lowest.
constexpr double sampling_noise(int64_t seed, int64_t output_index) {
  const auto low = [](int64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](int64_t x) { return static_cast<uint32_t>(static_cast<uint64_t>(x) >> 32); };
  const auto bits =
      philox4x32_10({low(output_index), high(output_index), 0, 0}, {low(seed), high(seed)});
  const uint64_t wide = static_cast<uint64_t>(bits[1]) << 32 | bits[0];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace pyengine
