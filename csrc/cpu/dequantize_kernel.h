// Rows of ggml blocks to floats, with the operations, and so the bits, of ggml's own
// dequantization. d is a block's scale, m its minimum; both are stored as half floats. Included by
// kernel_table.inc inside a namespace.

// Exact, subnormal numbers included. Free of branches, so that loops over it become vector code:
// a choice between two values is a mask, made by a carry or a borrow out of the exponent.
inline float half_to_float(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & (31u << 23);
  // The bias of exponents grows by 112; infinity and NaN go up to the greatest exponent of all.
  const uint32_t is_greatest = (exponent + (1u << 23)) >> 28;
  const uint32_t normal = magnitude + (112u << 23) + (-is_greatest & (112u << 23));
  // 2^-14 * (1 + fraction) - 2^-14
  const uint32_t with_one = magnitude + (113u << 23);
  float value;
  std::memcpy(&value, &with_one, sizeof value);
  value -= 0x1p-14f;
  uint32_t subnormal;
  std::memcpy(&subnormal, &value, sizeof subnormal);
  const uint32_t choice = -((exponent - 1) >> 31);
  const uint32_t bits = (subnormal & choice) | (normal & ~choice) | (half & 0x8000u) << 16;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct F32 {
  static constexpr int64_t kBytes = 4;
  static float decode(const uint8_t* p) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
};

struct F16 {
  static constexpr int64_t kBytes = 2;
  static float decode(const uint8_t* p) { return half_to_float(p); }
};

struct BF16 {
  static constexpr int64_t kBytes = 2;
  static float decode(const uint8_t* p) {
    bfloat16 x;
    std::memcpy(&x, p, sizeof x);
    return to_float(x);
  }
};

// [d][32 signed bytes]
struct Q8_0 {
  static constexpr int64_t kSize = 32, kBytes = 34;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_to_float(block);
    const uint8_t* q = block + 2;
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(q[i])) * d;
  }
};

// [d][16 bytes: element i in the low half of byte i, element i + 16 in the high half]
struct Q4_0 {
  static constexpr int64_t kSize = 32, kBytes = 18;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_to_float(block);
    const uint8_t* q = block + 2;
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>((q[i] & 15) - 8);
    for (int i = 0; i < 16; ++i) out[i + 16] = d * static_cast<float>((q[i] >> 4) - 8);
  }
};

// [d][m][16 bytes as in Q4_0]
struct Q4_1 {
  static constexpr int64_t kSize = 32, kBytes = 20;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_to_float(block), m = half_to_float(block + 2);
    const uint8_t* q = block + 4;
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(q[i] & 15) + m;
    for (int i = 0; i < 16; ++i) out[i + 16] = d * static_cast<float>(q[i] >> 4) + m;
  }
};

// The 16 bytes of a Q4_0 block after four of fifth bits, bit i that of element i.
inline void unpack_five_bits(const uint8_t* packed, int (&values)[32]) {
  uint32_t high;
  std::memcpy(&high, packed, sizeof high);
  const uint8_t* q = packed + sizeof high;
  for (int i = 0; i < 16; ++i) values[i] = q[i] & 15;
  for (int i = 0; i < 16; ++i) values[i + 16] = q[i] >> 4;
  for (int i = 0; i < 32; ++i) values[i] |= static_cast<int>((high >> i) & 1) << 4;
}

// [d][fifth bits][16 bytes as in Q4_0]
struct Q5_0 {
  static constexpr int64_t kSize = 32, kBytes = 22;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_to_float(block);
    int values[32];
    unpack_five_bits(block + 2, values);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(values[i] - 16);
  }
};

// [d][m][fifth bits][16 bytes as in Q4_0]
struct Q5_1 {
  static constexpr int64_t kSize = 32, kBytes = 24;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_to_float(block), m = half_to_float(block + 2);
    int values[32];
    unpack_five_bits(block + 4, values);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(values[i]) + m;
  }
};

// Scale and minimum of the eight 32-element groups of a Q4_K or Q5_K block, six bits each, in 12
// bytes: those of groups 0-3 in the low bits of bytes 0-3 and 4-7; those of groups 4-7 have four
// bits in bytes 8-11 and their upper two bits on top of bytes 0-3 and 4-7.
inline void unpack_scales(const uint8_t* packed, float d, float dmin, float* scales, float* mins) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t a = packed[i], b = packed[i + 4], c = packed[i + 8];
    scales[i] = d * static_cast<float>(a & 63);
    mins[i] = dmin * static_cast<float>(b & 63);
    scales[i + 4] = d * static_cast<float>((c & 15) | ((a >> 2) & 0x30));
    mins[i + 4] = dmin * static_cast<float>((c >> 4) | ((b >> 2) & 0x30));
  }
}

// [d][dmin][12 bytes of scales][128 bytes: groups 2g and 2g + 1 in the halves of bytes 32g...]
struct Q4_K {
  static constexpr int64_t kSize = 256, kBytes = 144;
  static void decode(const uint8_t* block, float* out) {
    float scales[8], mins[8];
    unpack_scales(block + 4, half_to_float(block), half_to_float(block + 2), scales, mins);
    for (int group = 0; group < 8; ++group) {
      const uint8_t* q = block + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      const float d = scales[group], m = mins[group];
      for (int i = 0; i < 32; ++i) {
        out[group * 32 + i] = d * static_cast<float>((q[i] >> shift) & 15) - m;
      }
    }
  }
};

// As Q4_K, with 32 bytes of fifth bits before the rest: group g's are bit g of each.
struct Q5_K {
  static constexpr int64_t kSize = 256, kBytes = 176;
  static void decode(const uint8_t* block, float* out) {
    float scales[8], mins[8];
    unpack_scales(block + 4, half_to_float(block), half_to_float(block + 2), scales, mins);
    const uint8_t* high = block + 16;
    for (int group = 0; group < 8; ++group) {
      const uint8_t* q = block + 48 + group / 2 * 32;
      const int shift = group % 2 * 4;
      const float d = scales[group], m = mins[group];
      for (int i = 0; i < 32; ++i) {
        const int value = ((q[i] >> shift) & 15) | (((high[i] >> group) & 1) << 4);
        out[group * 32 + i] = d * static_cast<float>(value) - m;
      }
    }
  }
};

// [128 bytes of low four bits][64 bytes of high two bits][16 signed scales][d]. In each half of
// 128 elements, run r of 32 has its low bits in the halves of 64 bytes (runs 0, 1 low; 2, 3 high)
// and its high bits at bit 2r of 32 bytes.
struct Q6_K {
  static constexpr int64_t kSize = 256, kBytes = 210;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_to_float(block + 208);
    for (int group = 0; group < 16; ++group) {
      const int half = group / 8, run = group % 8 / 2, offset = group % 2 * 16;
      const uint8_t* low = block + half * 64 + run % 2 * 32 + offset;
      const uint8_t* high = block + 128 + half * 32 + offset;
      const int low_shift = run / 2 * 4, high_shift = run * 2;
      const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + group]));
      for (int i = 0; i < 16; ++i) {
        const int value = ((low[i] >> low_shift) & 15) | (((high[i] >> high_shift) & 3) << 4);
        out[group * 16 + i] = scale * static_cast<float>(value - 32);
      }
    }
  }
};

template <typename Element, typename T>
void decode_elements(const DequantizeArgs<T>& args, int64_t begin_row, int64_t end_row) {
  for (int64_t row = begin_row; row < end_row; ++row) {
    const uint8_t* in = args.data + row * args.row_bytes;
    T* out = args.out + row * args.row_size;
    for (int64_t i = 0; i < args.row_size; ++i) {
      out[i] = from_float<T>(Element::decode(in + i * Element::kBytes));
    }
  }
}

template <typename Block>
void decode_row(const uint8_t* blocks, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += Block::kSize, blocks += Block::kBytes) {
    Block::decode(blocks, out + i);
  }
}

// Several small blocks at a time: reading back a vector right after its parts were written stalls.
template <typename Block>
void decode_row(const uint8_t* blocks, int64_t size, bfloat16* out) {
  constexpr int64_t kChunk = 256;
  float values[kChunk];
  for (int64_t begin = 0; begin < size; begin += kChunk) {
    const int64_t n = std::min(kChunk, size - begin);
    decode_row<Block>(blocks + begin / Block::kSize * Block::kBytes, n, values);
    for (int64_t i = 0; i < n; i += kVecSize) store(out + begin + i, load(values + i));
  }
}

template <typename Block, typename T>
void decode_blocks(const DequantizeArgs<T>& args, int64_t begin_row, int64_t end_row) {
  for (int64_t row = begin_row; row < end_row; ++row) {
    decode_row<Block>(args.data + row * args.row_bytes, args.row_size,
                      args.out + row * args.row_size);
  }
}

template <typename T>
void dequantize(const DequantizeArgs<T>& args, int64_t begin_row, int64_t end_row) {
  switch (args.ggml_type) {
    case 0:
      return decode_elements<F32>(args, begin_row, end_row);
    case 1:
      return decode_elements<F16>(args, begin_row, end_row);
    case 2:
      return decode_blocks<Q4_0>(args, begin_row, end_row);
    case 3:
      return decode_blocks<Q4_1>(args, begin_row, end_row);
    case 6:
      return decode_blocks<Q5_0>(args, begin_row, end_row);
    case 7:
      return decode_blocks<Q5_1>(args, begin_row, end_row);
    case 8:
      return decode_blocks<Q8_0>(args, begin_row, end_row);
    case 12:
      return decode_blocks<Q4_K>(args, begin_row, end_row);
    case 13:
      return decode_blocks<Q5_K>(args, begin_row, end_row);
    case 14:
      return decode_blocks<Q6_K>(args, begin_row, end_row);
    case 30:
      return decode_elements<BF16>(args, begin_row, end_row);
  }
}
