#include <pybind11/pybind11.h>

PYBIND11_MODULE(_core, m) { m.doc() = "pyengine's block allocator."; }
