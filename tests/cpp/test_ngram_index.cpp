#include "core/ngram_index.h"

#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

using pyengine::NgramIndex;
using pyengine::TokenId;
using Tokens = std::vector<TokenId>;

Tokens guess_after(const Tokens& tokens, int64_t n, int64_t max_tokens) {
  NgramIndex index(n);
  index.append(tokens);
  return index.guess(max_tokens);
}

TEST(what_never_occurred_before_gives_no_guess) {
  CHECK(guess_after({}, 2, 4).empty());
  CHECK(guess_after({1}, 2, 4).empty());
  CHECK(guess_after({1, 2, 3, 2, 4}, 2, 4).empty());
}

TEST(a_guess_is_what_followed_the_latest_earlier_occurrence) {
  CHECK(guess_after({1, 2, 8, 1, 2, 9, 7, 6, 1, 2}, 2, 3) == (Tokens{9, 7, 6}));
  CHECK(guess_after({1, 2, 9, 7, 6, 1, 2}, 2, 1) == (Tokens{9}));
  CHECK(guess_after({1, 2, 9, 7, 6, 1, 2}, 2, 0).empty());
}

TEST(a_guess_beyond_the_end_repeats_itself) {
  CHECK(guess_after({1, 2, 3, 1, 2}, 2, 7) == (Tokens{3, 1, 2, 3, 1, 2, 3}));
  CHECK(guess_after({5, 5, 5}, 2, 3) == (Tokens{5, 5, 5}));
}

TEST(appending_one_by_one_is_appending_at_once) {
  const Tokens tokens = {4, 1, 2, 4, 1, 2, 4, 4, 1, 2, 0, -1, 4, 1};
  NgramIndex one_by_one(2);
  for (size_t i = 0; i < tokens.size(); ++i) {
    one_by_one.append(std::span(tokens).subspan(i, 1));
    CHECK_EQ(one_by_one.num_tokens(), static_cast<int64_t>(i) + 1);
    const Tokens so_far(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    CHECK(one_by_one.guess(5) == guess_after(so_far, 2, 5));
  }
}

TEST(n_below_one_is_refused) {
  CHECK_THROWS(std::invalid_argument, "n must be at least 1, got 0", NgramIndex(0));
}

}  // namespace

int main() { return pyengine::testing::run_tests(); }
