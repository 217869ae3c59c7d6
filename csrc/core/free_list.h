// The free blocks, in the order in which they are handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pyengine {

// A block's index in the KV cache. Block tables hold 32-bit ids; 64 bits here spare the casts.
using BlockId = int64_t;

inline constexpr BlockId kNoBlock = -1;

// An intrusive doubly linked list over the ids [0, num_blocks): every operation is O(1) and none
// allocates. A sentinel (the id num_blocks) closes the ring, so that no end is a special case.
class FreeList {
 public:
  explicit FreeList(int64_t num_blocks)
      : sentinel_(num_blocks), links_(static_cast<size_t>(num_blocks) + 1, {kNoBlock, kNoBlock}) {
    links_[sentinel_] = {sentinel_, sentinel_};
  }

  int64_t size() const { return size_; }
  bool contains(BlockId id) const { return links_[id].next != kNoBlock; }

  // The first block, or kNoBlock when the list is empty.
  BlockId front() const { return or_none(links_[sentinel_].next); }
  // The block after or before `id`, which is in the list; kNoBlock at the end.
  BlockId next(BlockId id) const { return or_none(links_[id].next); }
  BlockId prev(BlockId id) const { return or_none(links_[id].prev); }

  void push_front(BlockId id) { insert(id, sentinel_, links_[sentinel_].next); }
  void push_back(BlockId id) { insert(id, links_[sentinel_].prev, sentinel_); }

  void remove(BlockId id) {
    const Link link = links_[id];
    links_[link.prev].next = link.next;
    links_[link.next].prev = link.prev;
    links_[id] = {kNoBlock, kNoBlock};
    --size_;
  }

 private:
  struct Link {
    BlockId prev;
    BlockId next;  // kNoBlock: not in the list
  };

  BlockId or_none(BlockId id) const { return id == sentinel_ ? kNoBlock : id; }

  void insert(BlockId id, BlockId prev, BlockId next) {
    links_[id] = {prev, next};
    links_[prev].next = id;
    links_[next].prev = id;
    ++size_;
  }

  BlockId sentinel_;
  std::vector<Link> links_;
  int64_t size_ = 0;
};

}  // namespace pyengine
