// The kernels in plain C++, for any machine: the compiler's baseline instruction set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels.h"

namespace pyengine {
namespace {
#include "vec.h"

#include "kernel_table.inc"
}  // namespace

extern const Kernels kKernelsPortable = make_kernels();

}  // namespace pyengine
