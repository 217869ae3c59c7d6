// Where the last tokens of a sequence occurred in it before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "prefix_cache.h"

namespace pyengine {

// Guesses how a sequence goes on: as it did after the last n tokens when they occurred before.
// (Prompt look-up decoding; Saxena 2023.) A token costs one step of a hash table to append, and a
// guess costs its length.
class NgramIndex {
 public:
  // Throws std::invalid_argument when n < 1.
  explicit NgramIndex(int64_t n);

  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }

  void append(std::span<const TokenId> tokens);

  // Up to max_tokens tokens, from the latest earlier occurrence; none if there is none. Where the
  // occurrence is nearer than that, the guess goes on with itself, as a loop does:
  //
  //     n = 2, tokens 1 2 3 1 2:  guess 3 1 2 3 1 ...
  std::vector<TokenId> guess(int64_t max_tokens) const;

 private:
  uint64_t hash_of_last() const;

  size_t n_;
  std::vector<TokenId> tokens_;
  // From the hash of n tokens to the end of their latest occurrence. Two kinds of n tokens with one
  // hash displace each other, which costs a guess; the tokens are compared before they are used.
  std::unordered_map<uint64_t, size_t> latest_end_;
  size_t match_end_ = 0;  // of the earlier occurrence of the last n tokens; 0: there is none
};

}  // namespace pyengine
