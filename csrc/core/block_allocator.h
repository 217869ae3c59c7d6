// Who holds which block of the KV cache, and which free blocks still hold a known prefix.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "free_list.h"
#include "prefix_cache.h"

namespace pyengine {

// Fewer blocks are free than were asked for. Not a fault: the scheduler preempts and tries again.
struct NoFreeBlocksError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The longest cached prefix of some tokens, in full blocks.
struct PrefixMatch {
  std::vector<BlockId> block_ids;
  int64_t num_free = 0;             // how many of them nobody holds: acquiring them takes as many
  ChainId chain_id = kRootChainId;  // of the last one; the parent of what comes next
};

// Hands out the blocks of one KV cache. A block is
//
//     free    ref count 0, in the free list
//     held    ref count > 0, by as many sequences
//
// and, independently, cached or not. Free blocks are handed out in one order: uncached ones first,
// the last freed before the others; then cached ones, the least recently used first, which are
// forgotten thereby. A freed table gives up its last block first, so that a prefix outlives what
// follows it.
//
// Owned by one thread. A call that throws has changed nothing. Every operation takes a time
// linear in its arguments; a forgotten block takes those that follow it along, each only once.
class BlockAllocator {
 public:
  BlockAllocator(int64_t num_blocks, int64_t block_size, uint64_t hash_mask = UINT64_MAX);

  int64_t num_blocks() const { return static_cast<int64_t>(ref_counts_.size()); }
  int64_t block_size() const { return block_size_; }
  int64_t num_free_blocks() const { return free_.size(); }
  int64_t num_cached_blocks() const { return cache_.size(); }

  // n blocks with a ref count of 1 each. Throws NoFreeBlocksError.
  std::vector<BlockId> allocate(int64_t n);

  // The longest chain of full blocks that is cached below a root. Looks only: the order of eviction
  // stays.
  PrefixMatch match_prefix(std::span<const TokenId> tokens, ChainId root = kRootChainId) const;

  // One reference more for each id, held or cached; an id may be repeated.
  void acquire(std::span<const BlockId> ids);

  // Registers the content of a full, computed block that the caller holds, and returns the chain
  // id under which the next block is to be cached. When a block with this content is cached
  // already, this one stays private, and the id is that of the other. When the parent has been
  // forgotten meanwhile, the block stays private too, and the parent's id is returned: nothing can
  // be cached under it any more.
  ChainId cache_block(ChainId parent, BlockId id, std::span<const TokenId> tokens);

  // One reference less for each id; an id may be repeated as often as it is held.
  void free(std::span<const BlockId> ids);

  int64_t ref_count(BlockId id) const;
  bool is_cached(BlockId id) const;

  // Forgets every prefix. Held blocks stay held.
  void clear_cache();

  // Throws std::logic_error naming the block, when the state contradicts itself.
  void check_invariants() const;

 private:
  friend struct BlockAllocatorPeer;  // lets a test break it

  void check_id(BlockId id) const;
  void forget(BlockId id);

  int64_t block_size_;
  std::vector<int64_t> ref_counts_;  // [num_blocks]
  FreeList free_;
  PrefixCache cache_;
};

}  // namespace pyengine
