// The kernels compiled for AVX-512 with bf16 dot products and VNNI.
//
// Headers of the standard library come before the pragma: an inline function of theirs compiled
// with AVX-512 could be the copy that the linker keeps for everybody.
#if defined(__x86_64__)
// g++ 12 finds its own _mm512_undefined_ps() uninitialized.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")
#define PYENGINE_VEC_AVX512 1

namespace pyengine {
namespace {
#include "vec.h"

#include "kernel_table.inc"
}  // namespace

extern const Kernels kKernelsAvx512 = make_kernels();

}  // namespace pyengine
#pragma GCC pop_options
#endif
