// The kernels compiled for AVX2 with FMA.
//
// Headers of the standard library come before the pragma: an inline function of theirs compiled
// with AVX2 could be the copy that the linker keeps for everybody.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define PYENGINE_VEC_AVX2 1

namespace pyengine {
namespace {
#include "vec.h"

#include "kernel_table.inc"
}  // namespace

extern const Kernels kKernelsAvx2 = make_kernels();

}  // namespace pyengine
#pragma GCC pop_options
#endif
