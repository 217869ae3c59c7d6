#include "block_allocator.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace pyengine {
namespace {

std::string block(BlockId id) { return "block " + std::to_string(id); }

int64_t check_num_blocks(int64_t num_blocks) {
  if (num_blocks < 1 || num_blocks > INT32_MAX) {
    throw std::invalid_argument("num_blocks must be between 1 and " + std::to_string(INT32_MAX) +
                                ", got " + std::to_string(num_blocks));
  }
  return num_blocks;
}

int64_t check_block_size(int64_t block_size) {
  if (block_size < 1 || block_size > INT32_MAX) {
    throw std::invalid_argument("block_size must be between 1 and " + std::to_string(INT32_MAX) +
                                ", got " + std::to_string(block_size));
  }
  return block_size;
}

}  // namespace

BlockAllocator::BlockAllocator(int64_t num_blocks, int64_t block_size, uint64_t hash_mask)
    : block_size_(check_block_size(block_size)),
      ref_counts_(static_cast<size_t>(check_num_blocks(num_blocks))),
      free_(num_blocks),
      cache_(num_blocks, block_size, hash_mask) {
  for (BlockId id = 0; id < num_blocks; ++id) free_.push_back(id);
}

std::vector<BlockId> BlockAllocator::allocate(int64_t n) {
  if (n < 0) throw std::invalid_argument("n must be at least 0, got " + std::to_string(n));
  if (n > num_free_blocks()) {
    throw NoFreeBlocksError("n must be at most the number of free blocks (" +
                            std::to_string(num_free_blocks()) + " of " +
                            std::to_string(num_blocks()) + "), got " + std::to_string(n));
  }
  std::vector<BlockId> ids;
  ids.reserve(static_cast<size_t>(n));
  while (n-- > 0) {
    const BlockId id = free_.front();
    if (cache_.contains(id)) forget(id);
    free_.remove(id);
    ref_counts_[id] = 1;
    ids.push_back(id);
  }
  return ids;
}

PrefixMatch BlockAllocator::match_prefix(std::span<const TokenId> tokens, ChainId root) const {
  if (!is_root(root)) {
    throw std::invalid_argument("root_chain_id must be ROOT_CHAIN_ID, or at least OTHER_ROOTS, " +
                                ("got " + std::to_string(root)));
  }
  const size_t block_size = static_cast<size_t>(block_size_);
  PrefixMatch match;
  match.chain_id = root;
  for (; tokens.size() >= block_size; tokens = tokens.subspan(block_size)) {
    const BlockId id = cache_.find(match.chain_id, tokens.first(block_size));
    if (id == kNoBlock) break;
    match.block_ids.push_back(id);
    match.num_free += ref_counts_[id] == 0;
    match.chain_id = cache_.chain_id(id);
  }
  return match;
}

void BlockAllocator::acquire(std::span<const BlockId> ids) {
  for (BlockId id : ids) {
    check_id(id);
    if (ref_counts_[id] == 0 && !cache_.contains(id)) {
      throw std::invalid_argument(block(id) + " is free and not cached: there is nothing in it " +
                                  "to acquire");
    }
  }
  for (BlockId id : ids) {
    if (ref_counts_[id]++ == 0) free_.remove(id);
  }
}

ChainId BlockAllocator::cache_block(ChainId parent, BlockId id, std::span<const TokenId> tokens) {
  check_id(id);
  if (static_cast<int64_t>(tokens.size()) != block_size_) {
    throw std::invalid_argument("token_ids must have block_size (" + std::to_string(block_size_) +
                                ") tokens, got " + std::to_string(tokens.size()));
  }
  if (!cache_.was_issued(parent)) {
    throw std::invalid_argument("parent_chain_id must come from match_prefix or cache_block, got " +
                                std::to_string(parent));
  }
  if (ref_counts_[id] == 0) {
    throw std::invalid_argument(block(id) + " is free: only a held block can be cached");
  }
  if (!cache_.is_live(parent)) return parent;
  const BlockId existing = cache_.find(parent, tokens);
  if (cache_.contains(id) && existing != id) {
    throw std::invalid_argument(block(id) + " is cached already, with other content");
  }
  if (existing != kNoBlock) return cache_.chain_id(existing);
  return cache_.insert(parent, tokens, id);
}

void BlockAllocator::free(std::span<const BlockId> ids) {
  for (BlockId id : ids) check_id(id);
  // A trial run on the counts, undone at once, finds an id that is listed too often.
  size_t num_held = 0;
  while (num_held < ids.size() && ref_counts_[ids[num_held]] > 0) --ref_counts_[ids[num_held++]];
  for (BlockId id : ids.first(num_held)) ++ref_counts_[id];
  if (num_held < ids.size()) {
    const BlockId id = ids[num_held];
    if (ref_counts_[id] == 0) throw std::invalid_argument(block(id) + " is free already");
    throw std::invalid_argument(block(id) + " is listed more often than it is held (" +
                                std::to_string(ref_counts_[id]) + ")");
  }
  for (size_t i = ids.size(); i-- > 0;) {
    const BlockId id = ids[i];
    if (--ref_counts_[id] > 0) continue;
    if (cache_.contains(id)) {
      free_.push_back(id);
    } else {
      free_.push_front(id);
    }
  }
}

int64_t BlockAllocator::ref_count(BlockId id) const {
  check_id(id);
  return ref_counts_[id];
}

bool BlockAllocator::is_cached(BlockId id) const {
  check_id(id);
  return cache_.contains(id);
}

void BlockAllocator::clear_cache() { cache_.clear(); }

void BlockAllocator::check_invariants() const {
  const auto check = [](bool holds, BlockId id, const char* what) {
    if (!holds) throw std::logic_error(block(id) + " " + what);
  };
  int64_t num_free = 0;
  BlockId prev = kNoBlock;
  for (BlockId id = free_.front(); id != kNoBlock; prev = id, id = free_.next(id)) {
    // A ring that does not close at the sentinel would be walked for ever.
    check(++num_free <= num_blocks(), id, "is in the free list twice");
    check(free_.prev(id) == prev, id, "has a broken link in the free list");
    check(ref_counts_[id] == 0, id, "is in the free list and held");
    check(cache_.contains(id) || prev == kNoBlock || !cache_.contains(prev), id,
          "is uncached and behind a cached block in the free list");
  }
  for (BlockId id = 0; id < num_blocks(); ++id) {
    check(ref_counts_[id] >= 0, id, "has a negative ref count");
    check(free_.contains(id) == (ref_counts_[id] == 0), id, "is neither held nor in the free list");
  }
  if (num_free != num_free_blocks()) {
    throw std::logic_error("the free list counts " + std::to_string(num_free_blocks()) +
                           " blocks and holds " + std::to_string(num_free));
  }
  cache_.check_invariants();
}

void BlockAllocator::check_id(BlockId id) const {
  if (id < 0 || id >= num_blocks()) {
    throw std::invalid_argument(block(id) + " does not exist: ids are 0 to " +
                                std::to_string(num_blocks() - 1));
  }
}

// The blocks that go with it and are free come to the front of the list, before all cached ones;
// the block itself last, so that it is at the very front.
void BlockAllocator::forget(BlockId id) {
  cache_.erase(id, [this](BlockId erased) {
    if (ref_counts_[erased] > 0) return;
    free_.remove(erased);
    free_.push_front(erased);
  });
}

}  // namespace pyengine
