#include "ngram_index.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace pyengine {

NgramIndex::NgramIndex(int64_t n) : n_(static_cast<size_t>(n)) {
  if (n < 1) throw std::invalid_argument("n must be at least 1, got " + std::to_string(n));
}

void NgramIndex::append(std::span<const TokenId> tokens) {
  for (TokenId token : tokens) {
    tokens_.push_back(token);
    if (tokens_.size() < n_) continue;
    size_t& latest_end = latest_end_[hash_of_last()];
    const bool is_same =
        latest_end != 0 && std::equal(tokens_.end() - static_cast<std::ptrdiff_t>(n_),
                                      tokens_.end(), tokens_.begin() + latest_end - n_);
    match_end_ = is_same ? latest_end : 0;
    latest_end = tokens_.size();
  }
}

std::vector<TokenId> NgramIndex::guess(int64_t max_tokens) const {
  std::vector<TokenId> guessed;
  if (match_end_ == 0) return guessed;
  const size_t period = tokens_.size() - match_end_;
  for (size_t i = 0; static_cast<int64_t>(i) < max_tokens; ++i) {
    guessed.push_back(i < period ? tokens_[match_end_ + i] : guessed[i - period]);
  }
  return guessed;
}

// FNV-1a's way, a token at a time, and a shift so that the high bits count too.
uint64_t NgramIndex::hash_of_last() const {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = tokens_.size() - n_; i < tokens_.size(); ++i) {
    h = (h ^ static_cast<uint32_t>(tokens_[i])) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace pyengine
