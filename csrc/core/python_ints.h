// From Python's sequences of ints to vectors.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

namespace pyengine {

// Several times as fast as pybind11's own conversion of a list, which counts for a prompt of
// 100,000 tokens; and its errors name the argument and the item.
template <typename Int>
std::vector<Int> to_ints(const pybind11::sequence& ints, const char* name) {
  namespace py = pybind11;
  const auto at = [name](Py_ssize_t i) {
    return std::string(name) + "[" + std::to_string(i) + "] must be ";
  };
  const py::object items = py::reinterpret_steal<py::object>(PySequence_Fast(ints.ptr(), name));
  if (!items) throw py::error_already_set();
  std::vector<Int> result;
  result.reserve(static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr())));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    // Holds the item: __index__ of an int-like object may run any code.
    const auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(items.ptr(), i));
    if (!PyIndex_Check(item.ptr())) {
      throw py::type_error(at(i) + "an int, got " + Py_TYPE(item.ptr())->tp_name);
    }
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
    if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (overflow != 0 || !std::in_range<Int>(value)) {
      throw py::value_error(at(i) + "an int of " + std::to_string(8 * sizeof(Int)) + " bits, got " +
                            py::str(item).cast<std::string>());
    }
    result.push_back(static_cast<Int>(value));
  }
  return result;
}

}  // namespace pyengine
