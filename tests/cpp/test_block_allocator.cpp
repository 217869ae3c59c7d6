// What Python's tests of the allocator can't reach: its use from C++, a check of a state that was
// broken on purpose, and long random runs under the sanitizers.
#include "core/block_allocator.h"

#include <random>
#include <vector>

#include "check.h"

namespace pyengine {

// Breaks an allocator. A friend, so that nothing else needs access to its state.
struct BlockAllocatorPeer {
  static int64_t& ref_count(BlockAllocator& a, BlockId id) { return a.ref_counts_[id]; }
  static FreeList& free_list(BlockAllocator& a) { return a.free_; }
  static ChainId& chain_id(BlockAllocator& a, BlockId id) { return entry(a, id).chain_id; }
  static BlockId& first_child(BlockAllocator& a, BlockId id) { return entry(a, id).first_child; }
  static BlockId& next_in_bucket(BlockAllocator& a, BlockId id) {
    return entry(a, id).next_in_bucket;
  }
  static BlockId& prev_sibling(BlockAllocator& a, BlockId id) { return entry(a, id).prev_sibling; }
  static TokenId& first_token(BlockAllocator& a, BlockId id) {
    return a.cache_.tokens_[id * a.block_size_];
  }
  static int64_t& num_cached(BlockAllocator& a) { return a.cache_.size_; }

 private:
  static PrefixCache::Entry& entry(BlockAllocator& a, BlockId id) { return a.cache_.entries_[id]; }
};

}  // namespace pyengine

namespace {

using pyengine::BlockAllocator;
using pyengine::BlockId;
using pyengine::ChainId;
using pyengine::kNoBlock;
using pyengine::kRootChainId;
using pyengine::NoFreeBlocksError;
using pyengine::PrefixMatch;
using pyengine::TokenId;
using Peer = pyengine::BlockAllocatorPeer;
using Ids = std::vector<BlockId>;
using Tokens = std::vector<TokenId>;

TEST(a_prefix_is_found_again_after_it_was_freed) {
  BlockAllocator allocator(4, 2);
  const Ids table = allocator.allocate(2);
  const ChainId first = allocator.cache_block(kRootChainId, table[0], Tokens{1, 2});
  const ChainId second = allocator.cache_block(first, table[1], Tokens{3, 4});
  allocator.free(table);
  const PrefixMatch match = allocator.match_prefix(Tokens{1, 2, 3, 4, 5});
  CHECK_EQ(match.block_ids, table);
  CHECK_EQ(match.num_free, 2);
  CHECK_EQ(match.chain_id, second);
}

TEST(errors_have_the_types_that_callers_tell_apart) {
  BlockAllocator allocator(2, 2);
  CHECK_THROWS(NoFreeBlocksError, "n must be at most the number of free blocks (2 of 2), got 3",
               allocator.allocate(3));
  CHECK_THROWS(std::invalid_argument, "block 1 is free already", allocator.free(Ids{1}));
}

// Three blocks: 0 and 1 hold a cached prefix of two blocks, 2 another child of block 0; 3 is free.
BlockAllocator small_tree() {
  BlockAllocator allocator(4, 1);
  allocator.allocate(3);
  const ChainId parent = allocator.cache_block(kRootChainId, 0, Tokens{7});
  allocator.cache_block(parent, 1, Tokens{8});
  allocator.cache_block(parent, 2, Tokens{9});
  allocator.check_invariants();
  return allocator;
}

// What check_invariants says of a small tree in which one thing was broken.
template <typename Break>
std::string diagnosis(const Break& break_it) {
  BlockAllocator allocator = small_tree();
  break_it(allocator);
  try {
    allocator.check_invariants();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "nothing wrong";
}

TEST(the_invariant_check_names_a_block_whose_ref_count_is_wrong) {
  CHECK_EQ(diagnosis([](auto& a) { Peer::ref_count(a, 3) = 1; }),
           "block 3 is in the free list and held");
  CHECK_EQ(diagnosis([](auto& a) { Peer::ref_count(a, 1) = 0; }),
           "block 1 is neither held nor in the free list");
  CHECK_EQ(diagnosis([](auto& a) { Peer::ref_count(a, 1) = -1; }),
           "block 1 has a negative ref count");
}

TEST(the_invariant_check_names_a_block_at_a_wrong_place_in_the_free_list) {
  CHECK_EQ(diagnosis([](auto& a) {
             a.free(Ids{1});
             Peer::free_list(a).remove(1);
             Peer::free_list(a).push_front(1);
           }),
           "block 3 is uncached and behind a cached block in the free list");
}

TEST(the_invariant_check_names_a_block_whose_cache_entry_is_wrong) {
  CHECK_EQ(diagnosis([](auto& a) { Peer::chain_id(a, 1) += 1; }),
           "block 1 has the chain id of another block");
  CHECK_EQ(diagnosis([](auto& a) { Peer::chain_id(a, 1) += 4000; }),
           "block 1 has a chain id that was never given out");
  CHECK_EQ(diagnosis([](auto& a) { Peer::chain_id(a, 0) += 4; }),
           "block 2 is listed as a child of another prefix than its own");
  CHECK_EQ(diagnosis([](auto& a) {
             Peer::chain_id(a, 0) += 4;
             Peer::first_child(a, 0) = kNoBlock;
           }),
           "block 1 is cached but the prefix before it is not");
  CHECK_EQ(diagnosis([](auto& a) { Peer::chain_id(a, 1) = kRootChainId; }),
           "block 1 is in the hash table but not cached");
  CHECK_EQ(diagnosis([](auto& a) { Peer::first_token(a, 2) = 8; }),
           "block 2 is cached but a look-up of its content does not find it");
  CHECK_EQ(diagnosis([](auto& a) { Peer::first_child(a, 2) = 1; }),
           "block 1 is listed as a child of another prefix than its own");
  CHECK_EQ(diagnosis([](auto& a) { Peer::prev_sibling(a, 1) = kNoBlock; }),
           "block 1 has a broken sibling link");
  CHECK_EQ(diagnosis([](auto& a) { Peer::first_child(a, 0) = kNoBlock; }),
           "the prefix cache counts 3 blocks, its hash table 3, its tree 1");
}

TEST(the_invariant_check_ends_on_a_bucket_that_runs_in_a_circle) {
  CHECK_EQ(diagnosis([](auto& a) { Peer::next_in_bucket(a, 1) = 1; }),
           "block 1 is in the hash table twice, or the cache's size is wrong");
}

TEST(the_invariant_check_notices_a_wrong_count) {
  CHECK_EQ(diagnosis([](auto& a) { Peer::num_cached(a) = 4; }),
           "the prefix cache counts 4 blocks, its hash table 3, its tree 3");
}

// Sequences that come, share what is cached, cache what they fill, and go; in what order is random.
void run_random_sequences(uint64_t hash_mask, unsigned seed) {
  BlockAllocator allocator(32, 2, hash_mask);
  std::mt19937 random(seed);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<Ids> tables;
  for (int step = 0; step < 3000; ++step) {
    if (!tables.empty() && below(2) == 0) {
      std::swap(tables[below(tables.size())], tables.back());
      allocator.free(tables.back());
      tables.pop_back();
    } else {
      Tokens tokens(2 * (1 + below(8)));
      for (TokenId& token : tokens) token = static_cast<TokenId>(below(2));
      PrefixMatch match = allocator.match_prefix(tokens);
      const size_t num_found = match.block_ids.size(), num_new = tokens.size() / 2 - num_found;
      if (static_cast<int64_t>(num_new) + match.num_free > allocator.num_free_blocks()) continue;
      Ids table = match.block_ids;
      allocator.acquire(table);
      for (BlockId id : allocator.allocate(static_cast<int64_t>(num_new))) table.push_back(id);
      for (size_t i = num_found; i < table.size(); ++i) {
        match.chain_id =
            allocator.cache_block(match.chain_id, table[i], std::span(tokens).subspan(2 * i, 2));
      }
      CHECK_EQ(allocator.match_prefix(tokens).block_ids, table);
      tables.push_back(table);
    }
    if (step % 100 == 0) allocator.check_invariants();
  }
  for (const Ids& table : tables) allocator.free(table);
  allocator.check_invariants();
  CHECK_EQ(allocator.num_free_blocks(), 32);
}

TEST(random_sequences_leave_a_consistent_state) {
  for (unsigned seed = 0; seed < 5; ++seed) run_random_sequences(UINT64_MAX, seed);
}

TEST(random_sequences_leave_a_consistent_state_when_every_hash_collides) {
  for (unsigned seed = 0; seed < 5; ++seed) run_random_sequences(0, seed);
}

}  // namespace

int main() { return pyengine::testing::run_tests(); }
