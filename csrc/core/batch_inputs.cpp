#include "batch_inputs.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <string>

namespace pyengine {
namespace {

namespace py = pybind11;

py::ssize_t length_of(PyObject* list, const char* name) {
  if (!PyList_Check(list)) throw py::type_error(std::string(name) + " must hold lists");
  return PyList_GET_SIZE(list);
}

int64_t int_at(PyObject* list, py::ssize_t i) {
  const int64_t value = PyLong_AsLongLong(PyList_GET_ITEM(list, i));
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

}  // namespace

py::tuple flatten_rows(const py::list& token_ids, const py::list& first_positions,
                       const py::list& block_tables, int64_t block_size) {
  const py::ssize_t num_rows = PyList_GET_SIZE(token_ids.ptr());
  if (PyList_GET_SIZE(first_positions.ptr()) != num_rows ||
      PyList_GET_SIZE(block_tables.ptr()) != num_rows) {
    throw py::value_error("the lists must have an item for each row");
  }
  if (block_size < 1) throw py::value_error("block_size must be positive");
  py::ssize_t num_tokens = 0, max_blocks = 0;
  for (py::ssize_t row = 0; row < num_rows; ++row) {
    num_tokens += length_of(PyList_GET_ITEM(token_ids.ptr(), row), "token_ids");
    max_blocks =
        std::max(max_blocks, length_of(PyList_GET_ITEM(block_tables.ptr(), row), "block_tables"));
  }
  py::array_t<int64_t> tokens(num_tokens), positions(num_tokens), slots(num_tokens);
  py::array_t<int32_t> tables({num_rows, max_blocks}), starts(num_rows + 1), seq_lens(num_rows);
  int64_t* token = tokens.mutable_data();
  int64_t* position = positions.mutable_data();
  int64_t* slot = slots.mutable_data();
  int32_t* table = tables.mutable_data();
  int32_t* const start = starts.mutable_data();
  int32_t* const seq_len = seq_lens.mutable_data();
  start[0] = 0;
  for (py::ssize_t row = 0; row < num_rows; ++row, table += max_blocks) {
    PyObject* const fed = PyList_GET_ITEM(token_ids.ptr(), row);
    PyObject* const blocks = PyList_GET_ITEM(block_tables.ptr(), row);
    const py::ssize_t num_fed = PyList_GET_SIZE(fed), num_blocks = PyList_GET_SIZE(blocks);
    for (py::ssize_t i = 0; i < num_blocks; ++i) table[i] = static_cast<int32_t>(int_at(blocks, i));
    std::fill(table + num_blocks, table + max_blocks, 0);
    const int64_t first = int_at(first_positions.ptr(), row), end = first + num_fed;
    if (first < 0 || end > num_blocks * block_size) {
      throw py::value_error("the block table of row " + std::to_string(row) +
                            " doesn't reach its tokens");
    }
    for (py::ssize_t i = 0; i < num_fed; ++i) {
      const int64_t p = first + i;
      *token++ = int_at(fed, i);
      *position++ = p;
      *slot++ = table[p / block_size] * block_size + p % block_size;
    }
    start[row + 1] = start[row] + static_cast<int32_t>(num_fed);
    seq_len[row] = static_cast<int32_t>(end);
  }
  return py::make_tuple(tokens, positions, slots, tables, starts, seq_lens);
}

}  // namespace pyengine
