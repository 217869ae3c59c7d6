#include "prefix_cache.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace pyengine {

PrefixCache::PrefixCache(int64_t num_blocks, int64_t block_size, uint64_t hash_mask)
    : num_blocks_(static_cast<uint64_t>(num_blocks)),
      block_size_(block_size),
      hash_mask_(hash_mask),
      entries_(num_blocks_),
      tokens_(num_blocks_ * static_cast<uint64_t>(block_size)),
      buckets_(std::bit_ceil(num_blocks_), kNoBlock) {}

bool PrefixCache::was_issued(ChainId id) const {
  return is_root(id) || (id - 1) / num_blocks_ < next_serial_;
}

bool PrefixCache::is_live(ChainId id) const {
  return is_root(id) || entries_[block_of(id)].chain_id == id;
}

BlockId PrefixCache::find(ChainId parent, std::span<const TokenId> tokens) const {
  const uint64_t h = hash(parent, tokens);
  for (BlockId id = bucket(h); id != kNoBlock; id = entries_[id].next_in_bucket) {
    const Entry& entry = entries_[id];
    if (entry.hash == h && entry.parent_chain_id == parent &&
        std::ranges::equal(tokens_of(id), tokens)) {
      return id;
    }
  }
  return kNoBlock;
}

ChainId PrefixCache::insert(ChainId parent, std::span<const TokenId> tokens, BlockId id) {
  std::ranges::copy(tokens, tokens_.begin() + id * block_size_);
  Entry& entry = entries_[id];
  entry.chain_id = next_serial_++ * num_blocks_ + static_cast<uint64_t>(id) + 1;
  entry.parent_chain_id = parent;
  entry.hash = hash(parent, tokens);
  link(id);
  return entry.chain_id;
}

void PrefixCache::clear() {
  std::ranges::fill(entries_, Entry{});
  std::ranges::fill(buckets_, kNoBlock);
  size_ = 0;
}

void PrefixCache::check_invariants() const {
  const auto check = [](bool holds, BlockId id, const char* what) {
    if (!holds) throw std::logic_error("block " + std::to_string(id) + " " + what);
  };
  // Counts first: a bucket or a list of siblings that runs in a circle must not be walked for ever.
  int64_t num_hashed = 0, num_children = 0, num_below_roots = 0;
  for (BlockId first : buckets_) {
    for (BlockId id = first; id != kNoBlock; id = entries_[id].next_in_bucket) {
      check(contains(id), id, "is in the hash table but not cached");
      check(++num_hashed <= size_, id, "is in the hash table twice, or the cache's size is wrong");
    }
  }
  for (BlockId id = 0; id < static_cast<BlockId>(num_blocks_); ++id) {
    if (!contains(id)) continue;
    const Entry& entry = entries_[id];
    check(block_of(entry.chain_id) == id, id, "has the chain id of another block");
    check(was_issued(entry.chain_id), id, "has a chain id that was never given out");
    check(is_live(entry.parent_chain_id), id, "is cached but the prefix before it is not");
    check(find(entry.parent_chain_id, tokens_of(id)) == id, id,
          "is cached but a look-up of its content does not find it");
    num_below_roots += is_root(entry.parent_chain_id);
    BlockId prev = kNoBlock;
    for (BlockId child = entry.first_child; child != kNoBlock;
         child = entries_[child].next_sibling) {
      check(++num_children <= size_, child, "is listed as a child twice");
      check(entries_[child].parent_chain_id == entry.chain_id, child,
            "is listed as a child of another prefix than its own");
      check(entries_[child].prev_sibling == prev, child, "has a broken sibling link");
      prev = child;
    }
  }
  if (num_hashed != size_ || num_below_roots + num_children != size_) {
    throw std::logic_error("the prefix cache counts " + std::to_string(size_) +
                           " blocks, its hash table " + std::to_string(num_hashed) + ", its tree " +
                           std::to_string(num_below_roots + num_children));
  }
}

BlockId PrefixCache::parent_of(BlockId id) const {
  const ChainId parent = entries_[id].parent_chain_id;
  return is_root(parent) ? kNoBlock : block_of(parent);
}

std::span<const TokenId> PrefixCache::tokens_of(BlockId id) const {
  return std::span(tokens_).subspan(static_cast<size_t>(id * block_size_),
                                    static_cast<size_t>(block_size_));
}

// Multiply and shift per token, and the finalizer of SplitMix64 (Steele et al. 2014) so that
// every token reaches the low bits that choose the bucket.
uint64_t PrefixCache::hash(ChainId parent, std::span<const TokenId> tokens) const {
  uint64_t h = parent * 0x9e3779b97f4a7c15u;
  for (TokenId token : tokens) {
    h = (h ^ static_cast<uint32_t>(token)) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 32;
  }
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return (h ^ (h >> 31)) & hash_mask_;
}

void PrefixCache::link(BlockId id) {
  Entry& entry = entries_[id];
  BlockId& first = bucket(entry.hash);
  entry.next_in_bucket = first;
  first = id;
  if (const BlockId parent = parent_of(id); parent != kNoBlock) {
    entry.next_sibling = entries_[parent].first_child;
    if (entry.next_sibling != kNoBlock) entries_[entry.next_sibling].prev_sibling = id;
    entries_[parent].first_child = id;
  }
  ++size_;
}

void PrefixCache::unlink(BlockId id) {
  const Entry& entry = entries_[id];
  BlockId* link = &bucket(entry.hash);
  while (*link != id) link = &entries_[*link].next_in_bucket;
  *link = entry.next_in_bucket;
  if (const BlockId parent = parent_of(id); parent != kNoBlock) {
    if (entry.prev_sibling == kNoBlock) {
      entries_[parent].first_child = entry.next_sibling;
    } else {
      entries_[entry.prev_sibling].next_sibling = entry.next_sibling;
    }
    if (entry.next_sibling != kNoBlock) {
      entries_[entry.next_sibling].prev_sibling = entry.prev_sibling;
    }
  }
  entries_[id] = Entry{};
  --size_;
}

}  // namespace pyengine
