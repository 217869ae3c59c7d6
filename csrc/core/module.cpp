// pyengine._core: the block allocator, the n-gram index and the flattening of a step's rows, for
// Python. Signatures with types are in pyengine/_core.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>

#include "batch_inputs.h"
#include "block_allocator.h"
#include "ngram_index.h"
#include "python_ints.h"

namespace py = pybind11;

namespace pyengine {
namespace {

void bind_prefix_match(py::module_& m) {
  py::class_<PrefixMatch>(m, "PrefixMatch", "The longest cached prefix of some tokens.")
      .def_readonly("block_ids", &PrefixMatch::block_ids, "The blocks that hold it, in order.")
      .def_readonly("num_free", &PrefixMatch::num_free,
                    "How many of these blocks nobody holds: acquiring the match takes as many out "
                    "of num_free_blocks.")
      .def_readonly("chain_id", &PrefixMatch::chain_id,
                    "Names this prefix: the parent_chain_id of the block that comes next.");
}

void bind_block_allocator(py::module_& m) {
  py::class_<BlockAllocator>(
      m, "BlockAllocator",
      "Hands out the blocks of one KV cache, and finds cached prefixes in them again.\n\n"
      "A free block (ref count 0) may still be cached. Free blocks are handed out in one order:\n"
      "uncached ones first, then cached ones, the least recently used first, which are forgotten\n"
      "thereby, along with the blocks that follow them in a prefix.\n\n"
      "Owned by one thread, the engine's. A call that raises has changed nothing.")
      .def(py::init<int64_t, int64_t, uint64_t>(), py::arg("num_blocks"), py::arg("block_size"),
           py::kw_only(), py::arg("hash_mask") = UINT64_MAX,
           "num_blocks blocks of block_size tokens, all free.\n\n"
           "hash_mask is for tests: it is and-ed to every hash, so 0 makes all of them collide.\n\n"
           "Raises ValueError when a size is below 1 or above 2**31 - 1.")
      .def_property_readonly("num_blocks", &BlockAllocator::num_blocks)
      .def_property_readonly("block_size", &BlockAllocator::block_size, "Tokens a block.")
      .def_property_readonly("num_free_blocks", &BlockAllocator::num_free_blocks,
                             "Blocks with ref count 0, cached or not.")
      .def_property_readonly("num_cached_blocks", &BlockAllocator::num_cached_blocks,
                             "Blocks that match_prefix can find, held or free.")
      .def("allocate", &BlockAllocator::allocate, py::arg("n"),
           "Takes n free blocks; each has a ref count of 1 then.\n\n"
           "Raises NoFreeBlocksError when n > num_free_blocks, ValueError when n < 0.")
      .def(
          "match_prefix",
          [](const BlockAllocator& self, const py::sequence& token_ids, ChainId root_chain_id) {
            return self.match_prefix(to_ints<TokenId>(token_ids, "token_ids"), root_chain_id);
          },
          py::arg("token_ids"), py::arg("root_chain_id") = kRootChainId,
          "Finds the longest cached chain of full blocks that token_ids begin with, of those that\n"
          "were cached below this root: ROOT_CHAIN_ID, or any number from OTHER_ROOTS on.\n\n"
          "A look-up only: it takes no reference, and the order of eviction stays.\n\n"
          "Raises ValueError when root_chain_id is not a root's.")
      .def(
          "acquire",
          [](BlockAllocator& self, const py::sequence& block_ids) {
            self.acquire(to_ints<BlockId>(block_ids, "block_ids"));
          },
          py::arg("block_ids"),
          "Adds one reference to each block, which is held or cached.\n\n"
          "Raises ValueError naming a block that does not exist, or is free and not cached.")
      .def(
          "cache_block",
          [](BlockAllocator& self, ChainId parent_chain_id, BlockId block_id,
             const py::sequence& token_ids) {
            return self.cache_block(parent_chain_id, block_id,
                                    to_ints<TokenId>(token_ids, "token_ids"));
          },
          py::arg("parent_chain_id"), py::arg("block_id"), py::arg("token_ids"),
          "Registers the content of a full, computed block that the caller holds.\n\n"
          "parent_chain_id names what comes before it: a root (see match_prefix), or the chain\n"
          "id that cache_block returned for the block before, or match_prefix for the match\n"
          "before.\n"
          "Returns the chain id for the block that comes next. When the content is cached in\n"
          "another block already, this block stays private and that one's chain id is returned.\n"
          "When the parent has been forgotten meanwhile, this block stays private and the "
          "parent's\n"
          "id is returned: nothing can be cached under it any more.\n\n"
          "Raises ValueError when the block is free or cached with other content, when token_ids\n"
          "are not block_size many, or when parent_chain_id was never given out.")
      .def(
          "free",
          [](BlockAllocator& self, const py::sequence& block_ids) {
            self.free(to_ints<BlockId>(block_ids, "block_ids"));
          },
          py::arg("block_ids"),
          "Takes one reference from each block of a table, given in the table's order.\n\n"
          "At ref count 0 a block is free; the last of the table is handed out first.\n\n"
          "Raises ValueError naming a block that does not exist, is free already, or is listed\n"
          "more often than it is held.")
      .def("ref_count", &BlockAllocator::ref_count, py::arg("block_id"),
           "How many hold this block. Raises ValueError when it does not exist.")
      .def("is_cached", &BlockAllocator::is_cached, py::arg("block_id"),
           "Whether match_prefix can find this block. Raises ValueError when it does not exist.")
      .def("clear_cache", &BlockAllocator::clear_cache,
           "Forgets every prefix, say because the weights have changed. Held blocks stay held.")
      .def("check_invariants", &BlockAllocator::check_invariants,
           "Raises RuntimeError naming a block whose state contradicts itself: a bug.");
}

void bind_ngram_index(py::module_& m) {
  py::class_<NgramIndex>(
      m, "NgramIndex",
      "Guesses how a sequence of tokens goes on: as it did after its last n tokens when they\n"
      "occurred in it before.")
      .def(py::init<int64_t>(), py::arg("n"), "Raises ValueError when n < 1.")
      .def_property_readonly("num_tokens", &NgramIndex::num_tokens)
      .def(
          "append",
          [](NgramIndex& self, const py::sequence& token_ids) {
            self.append(to_ints<TokenId>(token_ids, "token_ids"));
          },
          py::arg("token_ids"), "Makes the sequence longer.")
      .def("guess", &NgramIndex::guess, py::arg("max_tokens"),
           "Up to max_tokens tokens, from the latest earlier occurrence; none if there is none.");
}

}  // namespace
}  // namespace pyengine

PYBIND11_MODULE(_core, m) {
  m.doc() = "pyengine's block allocator, n-gram index, and the flattening of a step's rows.";
  m.attr("ROOT_CHAIN_ID") = pyengine::kRootChainId;
  m.attr("OTHER_ROOTS") = pyengine::kOtherRoots;
  py::register_exception<pyengine::NoFreeBlocksError>(m, "NoFreeBlocksError", PyExc_RuntimeError)
      .doc() = "Fewer blocks are free than were asked for.";
  m.def("flatten_rows", &pyengine::flatten_rows, py::arg("token_ids"), py::arg("first_positions"),
        py::arg("block_tables"), py::arg("block_size"),
        "Lays the rows of a step one after another: S rows of T tokens in all.\n\n"
        "Row s feeds token_ids[s] at positions from first_positions[s] on; its blocks are\n"
        "block_tables[s].\n\n"
        "Returns token_ids int64 [T], positions int64 [T], slot_mapping int64 [T], block_tables\n"
        "int32 [S, longest] filled up with 0, query_start_loc int32 [S + 1], seq_lens int32 [S].\n"
        "\n"
        "Raises ValueError when a block table is too short for its tokens.");
  pyengine::bind_prefix_match(m);
  pyengine::bind_block_allocator(m);
  pyengine::bind_ngram_index(m);
}
