// From the rows of a plan to the arrays that the ops take.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace pyengine {

// One row after another: `token_ids[i]`, at positions from first_positions[i] on, go to the slots
// of block_tables[i]. All of them lists. See pyengine/_core.pyi for what comes back.
pybind11::tuple flatten_rows(const pybind11::list& token_ids, const pybind11::list& first_positions,
                             const pybind11::list& block_tables, int64_t block_size);

}  // namespace pyengine
