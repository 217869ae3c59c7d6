#include "core/free_list.h"

#include <vector>

#include "check.h"

namespace {

using pyengine::BlockId;
using pyengine::FreeList;
using pyengine::kNoBlock;

std::vector<BlockId> in_order(const FreeList& list) {
  std::vector<BlockId> ids;
  for (BlockId id = list.front(); id != kNoBlock; id = list.next(id)) ids.push_back(id);
  return ids;
}

TEST(a_new_list_is_empty) {
  const FreeList list(3);
  CHECK_EQ(list.size(), 0);
  CHECK_EQ(list.front(), kNoBlock);
  CHECK(!list.contains(0) && !list.contains(1) && !list.contains(2));
}

TEST(blocks_come_in_at_both_ends) {
  FreeList list(4);
  list.push_back(2);
  list.push_front(0);
  list.push_back(3);
  CHECK_EQ(in_order(list), (std::vector<BlockId>{0, 2, 3}));
  CHECK_EQ(list.size(), 3);
  CHECK(list.contains(2) && !list.contains(1));
  CHECK_EQ(list.prev(2), 0);
  CHECK_EQ(list.prev(0), kNoBlock);
}

TEST(a_block_leaves_from_anywhere_and_may_come_back) {
  FreeList list(4);
  for (BlockId id = 0; id < 4; ++id) list.push_back(id);
  list.remove(2);
  list.remove(0);
  list.remove(3);
  CHECK_EQ(in_order(list), (std::vector<BlockId>{1}));
  list.remove(1);
  CHECK_EQ(list.front(), kNoBlock);
  list.push_front(3);
  CHECK_EQ(in_order(list), (std::vector<BlockId>{3}));
}

}  // namespace

int main() { return pyengine::testing::run_tests(); }
