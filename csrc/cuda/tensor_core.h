// Products of small matrices by a warp's tensor cores, and how their operands get there: PTX for
// nvcc, the same meaning for the emulation (PTX ISA 8.5, "Warp Level Matrix Instructions").
//
// Matrices are held in pieces by all lanes. With group = lane / 4 and pair = lane % 4:
//   A [16, 16]: a[0], a[1] rows group, group + 8 of columns 2 * pair and the next;
//               a[2], a[3] the same of columns 8 + 2 * pair and the next
//   B [16, 8]:  b[0] rows 2 * pair and the next, b[1] rows 8 + 2 * pair and the next, of column group
//   C [16, 8]:  c[0], c[1] row group, c[2], c[3] row group + 8, of columns 2 * pair and the next
#pragma once

#include "numbers.h"
#include "platform.h"

#include <type_traits>

namespace pyengine {

// Two neighbours in a row or column; the first one in the low half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float first, float second) {
#ifdef __CUDACC__
  uint32_t packed;
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  }
  return packed;
#else
  return uint32_t{from_float<T>(second).bits} << 16 | from_float<T>(first).bits;
#endif
}

template <typename T>
__device__ __forceinline__ float2 unpack(uint32_t packed) {
  return {to_float(T{static_cast<uint16_t>(packed)}),
          to_float(T{static_cast<uint16_t>(packed >> 16)})};
}

// c += A B, for A and B of T and sums in float32.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  struct Operands {
    uint32_t a[4], b[2];
  } mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  auto& block = simt::Block::current();
  const auto* values = block.exchange(mine, "mma", 0);
  const int group = block.lane() / 4, pair = block.lane() % 4;
  const auto number = [](uint32_t packed, int half) {
    const float2 both = unpack<T>(packed);
    return half == 0 ? both.x : both.y;
  };
  for (int k = 0; k < 16; ++k) {
    const int lane = k % 8 / 2, half = k % 2, upper = k / 8;
    for (int i = 0; i < 4; ++i) {
      const auto of_a = simt::value_of<Operands>(values, group * 4 + lane);
      const auto of_b = simt::value_of<Operands>(values, (2 * pair + i % 2) * 4 + lane);
      c[i] += number(of_a.a[2 * upper + i / 2], half) * number(of_b.b[upper], half);
    }
  }
#endif
}

// Four 8x8 matrices of two-byte elements from shared memory. Lane l gives the address of row l % 8
// of matrix l / 8, 16 bytes at a multiple of 16; it gets of each matrix the elements 2 * (l % 4) and
// the next in row l / 4.
template <typename T>
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], Pointer<const T> row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
#else
  auto& block = simt::Block::current();
  const auto* values = block.exchange(*cast<const uint4>(row), "ldmatrix", 0);
  for (int m = 0; m < 4; ++m) {
    const auto of_row = simt::value_of<uint4>(values, m * 8 + block.lane() / 4);
    const uint32_t words[4] = {of_row.x, of_row.y, of_row.z, of_row.w};
    out[m] = words[block.lane() % 4];
  }
#endif
}

// The same, transposed: a lane gets the elements 2 * (l % 4) and the next in column l / 4.
template <typename T>
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], Pointer<const T> row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
#else
  struct Row {
    uint16_t elements[8];
  };
  auto& block = simt::Block::current();
  const auto* values =
      block.exchange(std::bit_cast<Row>(*cast<const uint4>(row)), "ldmatrix.trans", 0);
  const int column = block.lane() / 4, first = block.lane() % 4 * 2;
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int r) -> uint32_t {
      return simt::value_of<Row>(values, m * 8 + r).elements[column];
    };
    out[m] = element(first + 1) << 16 | element(first);
  }
#endif
}

// Copies 16 bytes from global to shared memory while the thread goes on, or writes zeros if not
// `is_read`. Between the copies that a thread committed and what it reads of them must stand
// wait_for_copies and a barrier.
__device__ __forceinline__ void copy_async(Pointer<uint4> to, Pointer<const uint4> from,
                                           bool is_read) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(is_read ? 16 : 0)
               : "memory");
#else
  uint4* const target = &*to;
  const uint4 value = is_read ? *from : uint4{0, 0, 0, 0};
  simt::Block::current().copy_later([=] { *target = value; });
#endif
}

__device__ __forceinline__ void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  simt::Block::current().commit_copies();
#endif
}

// Waits for all groups of copies that the thread committed but for the last kPending ones.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  simt::Block::current().wait_for_copies(kPending);
#endif
}

}  // namespace pyengine
