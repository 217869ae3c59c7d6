// Copies whole rows from where they are named.
#pragma once

#include "launch.h"

namespace pyengine::cuda {

constexpr int kCopyThreads = 128;

template <typename T>
struct CopyRowsArgs {
  Pointer<const T> from;  // [num_rows, size]
  Pointer<T> out;         // [*, size]
  int64_t num_rows, size;
  bool is_aligned;
};

// By all threads of a block. A row that doesn't exist is read as zeros.
template <typename T>
__device__ __forceinline__ void copy_row(const CopyRowsArgs<T>& args, int64_t from, int64_t to) {
  const bool exists = 0 <= from && from < args.num_rows;
  for (int64_t i = threadIdx.x * Vector<T>::kSize; i < args.size;
       i += kCopyThreads * Vector<T>::kSize) {
    const int64_t n = args.size - i;
    Vector<T> v{};
    if (exists) v = load_vector(args.from + (from * args.size + i), n, args.is_aligned);
    store_vector(args.out + (to * args.size + i), v, n, args.is_aligned);
  }
}

template <typename T>
CopyRowsArgs<T> copy_rows_args(const Tensor& from, const Tensor& out) {
  const int64_t size = from.size(1);
  return {pointer<const T>(from), pointer<T>(out), from.size(0), size,
          is_aligned(from, size) && is_aligned(out, size)};
}

}  // namespace pyengine::cuda
