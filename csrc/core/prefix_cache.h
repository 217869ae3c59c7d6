// Which block holds the keys and values of which prefix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "free_list.h"

namespace pyengine {

using TokenId = int32_t;

// Names a prefix that is (or once was) cached: the tokens of one block and of all blocks before
// it. An id is never given out twice, so equal ids mean equal prefixes.
using ChainId = uint64_t;

inline constexpr ChainId kRootChainId = 0;  // the empty prefix

// Any number of other roots, of which each is an empty prefix too: what is cached below one is
// never found below another. They have the top bit set, which no block's chain id reaches.
inline constexpr ChainId kOtherRoots = ChainId{1} << 63;

inline bool is_root(ChainId id) { return id == kRootChainId || id >= kOtherRoots; }

// A tree of full blocks: an entry is (parent chain id, tokens of the block) -> block. Since the
// parent's id stands for everything before the block, comparing these two is comparing the whole
// prefix; the hash only finds candidates, and a collision costs a comparison.
//
//     root --[5 6 7 8]--> block 2 --[9 9 9 9]--> block 0
//                                 \-[1 2 3 4]--> block 5
//
// Every entry can be reached from a root: with an entry go those below it, since no look-up
// could get to them again. All memory is allocated by the constructor.
class PrefixCache {
 public:
  // hash_mask is and-ed to every hash; 0 makes all of them collide, for tests.
  PrefixCache(int64_t num_blocks, int64_t block_size, uint64_t hash_mask);

  int64_t size() const { return size_; }
  bool contains(BlockId id) const { return entries_[id].chain_id != kRootChainId; }

  // The prefix that a cached block ends.
  ChainId chain_id(BlockId id) const { return entries_[id].chain_id; }

  // Whether this id was ever given out (or is a root's), and whether it is still cached.
  bool was_issued(ChainId id) const;
  bool is_live(ChainId id) const;

  // The block that holds `tokens` (block_size of them) after the prefix `parent`, or kNoBlock.
  BlockId find(ChainId parent, std::span<const TokenId> tokens) const;

  // Adds the entry (parent, tokens) -> id. The parent is live, the block not cached, and the
  // content not cached either.
  ChainId insert(ChainId parent, std::span<const TokenId> tokens, BlockId id);

  // Forgets a cached block and those below it, and calls on_erased(id) for each of them, after its
  // descendants. A loop rather than recursion: a long context is a chain of thousands of blocks.
  template <typename F>
  void erase(BlockId id, const F& on_erased) {
    for (BlockId last = id;;) {
      while (entries_[last].first_child != kNoBlock) last = entries_[last].first_child;
      const BlockId parent = parent_of(last);
      unlink(last);
      on_erased(last);
      if (last == id) return;
      last = parent;
    }
  }

  void clear();

  // Throws std::logic_error naming the block, when an entry contradicts another.
  void check_invariants() const;

 private:
  friend struct BlockAllocatorPeer;  // lets a test break it

  struct Entry {
    ChainId chain_id = kRootChainId;  // the root's id stands for "not cached"
    ChainId parent_chain_id = kRootChainId;
    uint64_t hash = 0;
    BlockId next_in_bucket = kNoBlock;
    // The children of a cached block form a list; those of a root need none.
    BlockId first_child = kNoBlock;
    BlockId next_sibling = kNoBlock;
    BlockId prev_sibling = kNoBlock;
  };

  // A chain id spells serial * num_blocks + block + 1, so that its block is found without a map.
  BlockId block_of(ChainId id) const { return static_cast<BlockId>((id - 1) % num_blocks_); }
  BlockId parent_of(BlockId id) const;
  std::span<const TokenId> tokens_of(BlockId id) const;
  uint64_t hash(ChainId parent, std::span<const TokenId> tokens) const;
  BlockId& bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  const BlockId& bucket(uint64_t hash) const { return buckets_[hash & (buckets_.size() - 1)]; }
  void link(BlockId id);
  void unlink(BlockId id);

  uint64_t num_blocks_;
  int64_t block_size_;
  uint64_t hash_mask_;
  uint64_t next_serial_ = 0;
  int64_t size_ = 0;
  std::vector<Entry> entries_;    // [num_blocks]
  std::vector<TokenId> tokens_;   // [num_blocks, block_size], a row for each cached block
  std::vector<BlockId> buckets_;  // [a power of two]: the first block of each bucket
};

}  // namespace pyengine
