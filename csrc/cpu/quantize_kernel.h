// Rows of floats to ggml blocks of 32, which dequantize_kernel.h describes. Included by
// kernel_table.inc after it, inside a namespace.
//
// kVecSize blocks are worked on at a time, one in each lane, so that every sum runs over a block's
// elements in order and the bytes do not depend on the instruction set: nothing here is fused.
//
// A 4-bit block gets the scale (and minimum) of least squared error among a few: those of ggml's
// plain rounding, and those reached from several beginnings by rounding to codes and fitting the
// scale to the codes by least squares in turn (the alternation of Lloyd 1982, on a uniform grid; a
// clipped range beats a full one: Choukroun et al. 2019). Errors are those of the decoded values,
// scales rounded to half floats.

constexpr int64_t kQuantizedBlock = 32;

// The nearest half float, ties to even; beyond the greatest (65504), that one.
inline uint16_t float_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  // Below 2^-14 half floats are multiples of 2^-24, as floats in [0.5, 1) are.
  float value;
  std::memcpy(&value, &magnitude, sizeof value);
  value += 0.5f;
  uint32_t subnormal;
  std::memcpy(&subnormal, &value, sizeof subnormal);
  subnormal -= 0x3f000000u;
  const uint32_t odd = magnitude >> 13 & 1u;
  const uint32_t normal = ((magnitude + 0xfffu + odd) >> 13) - (112u << 10);
  const uint32_t half = magnitude < 0x38800000u ? subnormal : std::min(normal, 0x7bffu);
  return static_cast<uint16_t>(sign | half);
}

inline float round_to_half(float x) {
  const uint16_t half = float_to_half(x);
  uint8_t bytes[sizeof half];
  std::memcpy(bytes, &half, sizeof half);
  return half_to_float(bytes);
}

inline void store_half(uint8_t* p, float x) {
  const uint16_t half = float_to_half(x);
  std::memcpy(p, &half, sizeof half);
}

template <typename F>
inline Vec map_lanes(Vec x, F f) {
  float lanes[kVecSize];
  store(lanes, x);
  for (float& lane : lanes) lane = f(lane);
  return load(lanes);
}

inline Vec round_to_half(Vec x) {
  return map_lanes(x, [](float lane) { return round_to_half(lane); });
}

// 1 / x, or 0 for 0.
inline Vec inverse_of(Vec x) {
  return map_lanes(x, [](float lane) { return lane == 0.0f ? 0.0f : 1.0f / lane; });
}

// The element i of every block in one vector.
using BlockLanes = Vec[kQuantizedBlock];

template <typename T>
void load_blocks(const T* weight, BlockLanes& x) {
  for (int64_t begin = 0; begin < kQuantizedBlock; begin += kVecSize) {
    Vec square[kVecSize];
    for (int64_t i = 0; i < kVecSize; ++i) square[i] = load(weight + i * kQuantizedBlock + begin);
    transpose(square);
    for (int64_t i = 0; i < kVecSize; ++i) x[begin + i] = square[i];
  }
}

// The integer in [low, high] that is nearest to x.
inline Vec nearest_code(Vec x, float low, float high) {
  const Vec clamped = min(max(x, broadcast(low)), broadcast(high));
  const Vec integers = broadcast(12582912.0f);  // 1.5 * 2^23: floats there are integers
  return clamped + integers - integers;
}

inline void find_range(const BlockLanes& x, Vec* lowest, Vec* greatest) {
  *lowest = *greatest = x[0];
  for (const Vec& v : x) {
    *lowest = min(*lowest, v);
    *greatest = max(*greatest, v);
  }
}

// How a 4-bit block is decoded: code * scale + minimum, for codes in [kLow, kHigh].
struct Symmetric {
  static constexpr float kLow = -8.0f, kHigh = 7.0f;
};
struct Affine {
  static constexpr float kLow = 0.0f, kHigh = 15.0f;
};

struct Grid {
  Vec scale, minimum;  // minimum is 0 if the grid is symmetric
};

// The best grid so far of each block.
struct BestGrids {
  float error[kVecSize], scale[kVecSize], minimum[kVecSize];
};

template <typename Codes>
Vec codes_of(Vec x, const Grid& grid, Vec inverse_scale) {
  return nearest_code((x - grid.minimum) * inverse_scale, Codes::kLow, Codes::kHigh);
}

// The grid of least squared error for the codes that `grid` gives.
inline Grid refit(const BlockLanes& x, const Grid& grid, Symmetric) {
  const Vec inverse_scale = inverse_of(grid.scale);
  Vec xq = broadcast(0.0f), qq = broadcast(0.0f);
  for (const Vec& v : x) {
    const Vec q = codes_of<Symmetric>(v, grid, inverse_scale);
    xq = xq + v * q;
    qq = qq + q * q;
  }
  return {xq / max(qq, broadcast(1.0f)), broadcast(0.0f)};
}

inline Grid refit(const BlockLanes& x, const Grid& grid, Affine) {
  const Vec inverse_scale = inverse_of(grid.scale);
  Vec sx = broadcast(0.0f), sq = sx, xq = sx, qq = sx;
  for (const Vec& v : x) {
    const Vec q = codes_of<Affine>(v, grid, inverse_scale);
    sx = sx + v;
    sq = sq + q;
    xq = xq + v * q;
    qq = qq + q * q;
  }
  const Vec size = broadcast(kQuantizedBlock);
  // The determinant is an integer, 0 if all codes are one.
  const Vec determinant = max(size * qq - sq * sq, broadcast(1.0f));
  const Vec scale = (size * xq - sq * sx) / determinant;
  return {scale, (sx - scale * sq) / size};
}

// Takes the grid, rounded to half floats, for the blocks that it fits better than their best.
template <typename Codes>
void offer(const BlockLanes& x, Grid grid, BestGrids* best) {
  grid = {round_to_half(grid.scale), round_to_half(grid.minimum)};
  const Vec inverse_scale = inverse_of(grid.scale);
  Vec squares = broadcast(0.0f);
  for (const Vec& v : x) {
    const Vec error = v - (codes_of<Codes>(v, grid, inverse_scale) * grid.scale + grid.minimum);
    squares = squares + error * error;
  }
  float error[kVecSize], scale[kVecSize], minimum[kVecSize];
  store(error, squares);
  store(scale, grid.scale);
  store(minimum, grid.minimum);
  for (int64_t i = 0; i < kVecSize; ++i) {
    if (!(error[i] < best->error[i])) continue;
    best->error[i] = error[i];
    best->scale[i] = scale[i];
    best->minimum[i] = minimum[i];
  }
}

inline BestGrids no_grids() {
  BestGrids best = {};
  for (float& error : best.error) error = std::numeric_limits<float>::infinity();
  return best;
}

// The value of greatest magnitude becomes -8 in ggml's rounding; here from -6.4 to -9.2, too.
inline BestGrids search(const BlockLanes& x, Symmetric codes) {
  constexpr int kBeginnings = 8, kRefits = 1;
  Vec lowest, greatest;
  find_range(x, &lowest, &greatest);
  float low[kVecSize], high[kVecSize];
  store(low, lowest);
  store(high, greatest);
  for (int64_t i = 0; i < kVecSize; ++i) high[i] = -low[i] > high[i] ? low[i] : high[i];
  const Vec extreme = load(high);
  BestGrids best = no_grids();
  offer<Symmetric>(x, {extreme / broadcast(-8.0f), broadcast(0.0f)}, &best);
  for (int k = 0; k < kBeginnings; ++k) {
    Grid grid = {extreme / broadcast(-6.4f - 0.4f * static_cast<float>(k)), broadcast(0.0f)};
    for (int i = 0; i < kRefits; ++i) grid = refit(x, grid, codes);
    offer<Symmetric>(x, grid, &best);
  }
  return best;
}

// The range from the least to the greatest value is ggml's; here each end, too, moved by so many
// steps inwards.
inline BestGrids search(const BlockLanes& x, Affine codes) {
  constexpr float kInsets[] = {-0.2f, 0.4f, 1.2f};
  constexpr int kRefits = 2;
  Vec lowest, greatest;
  find_range(x, &lowest, &greatest);
  const Vec step = (greatest - lowest) / broadcast(15.0f);
  BestGrids best = no_grids();
  offer<Affine>(x, {step, lowest}, &best);
  for (const float low : kInsets) {
    for (const float high : kInsets) {
      const float num_steps = 15.0f - low - high;
      Grid grid = {step * broadcast(num_steps / 15.0f), lowest + step * broadcast(low)};
      for (int i = 0; i < kRefits; ++i) grid = refit(x, grid, codes);
      offer<Affine>(x, grid, &best);
    }
  }
  return best;
}

// The codes of kVecSize blocks, kBytes apart in `out`, from 0 on: element i in the low half of byte
// i, element i + 16 in the high half.
template <typename Codes>
void write_nibbles(const BlockLanes& x, const Grid& grid, int64_t num_blocks, int64_t block_bytes,
                   uint8_t* out) {
  const Vec inverse_scale = inverse_of(grid.scale), low = broadcast(Codes::kLow);
  for (int64_t i = 0; i < kQuantizedBlock / 2; ++i) {
    const Vec first = codes_of<Codes>(x[i], grid, inverse_scale) - low;
    const Vec second = codes_of<Codes>(x[i + kQuantizedBlock / 2], grid, inverse_scale) - low;
    float both[kVecSize];
    store(both, first + second * broadcast(16.0f));
    for (int64_t block = 0; block < num_blocks; ++block) {
      out[block * block_bytes + i] = static_cast<uint8_t>(both[block]);
    }
  }
}

inline void encode(const BlockLanes& x, int64_t num_blocks, uint8_t* out, Q4_0) {
  const BestGrids best = search(x, Symmetric{});
  for (int64_t i = 0; i < num_blocks; ++i) store_half(out + i * Q4_0::kBytes, best.scale[i]);
  const Grid grid = {load(best.scale), broadcast(0.0f)};
  write_nibbles<Symmetric>(x, grid, num_blocks, Q4_0::kBytes, out + 2);
}

inline void encode(const BlockLanes& x, int64_t num_blocks, uint8_t* out, Q4_1) {
  const BestGrids best = search(x, Affine{});
  for (int64_t i = 0; i < num_blocks; ++i) {
    store_half(out + i * Q4_1::kBytes, best.scale[i]);
    store_half(out + i * Q4_1::kBytes + 2, best.minimum[i]);
  }
  const Grid grid = {load(best.scale), load(best.minimum)};
  write_nibbles<Affine>(x, grid, num_blocks, Q4_1::kBytes, out + 4);
}

// The greatest magnitude becomes 127. Unlike in ggml, values are divided by the scale as stored.
inline void encode(const BlockLanes& x, int64_t num_blocks, uint8_t* out, Q8_0) {
  Vec lowest, greatest;
  find_range(x, &lowest, &greatest);
  const Vec magnitude = max(broadcast(0.0f) - lowest, greatest);
  const Vec scale = round_to_half(magnitude / broadcast(127.0f));
  const Vec inverse_scale = inverse_of(scale);
  float scales[kVecSize];
  store(scales, scale);
  for (int64_t i = 0; i < num_blocks; ++i) store_half(out + i * Q8_0::kBytes, scales[i]);
  for (int64_t i = 0; i < kQuantizedBlock; ++i) {
    float codes[kVecSize];
    store(codes, nearest_code(x[i] * inverse_scale, -127.0f, 127.0f));
    for (int64_t block = 0; block < num_blocks; ++block) {
      out[block * Q8_0::kBytes + 2 + i] = static_cast<uint8_t>(static_cast<int8_t>(codes[block]));
    }
  }
}

// Whether all elements of the first num_blocks blocks are finite.
inline bool are_finite(const BlockLanes& x, int64_t num_blocks) {
  Vec zeros = broadcast(0.0f);
  for (const Vec& v : x) zeros = zeros + v * broadcast(0.0f);  // NaN for NaN and infinity
  float lanes[kVecSize];
  store(lanes, zeros);
  return std::all_of(lanes, lanes + num_blocks, [](float lane) { return lane == 0.0f; });
}

template <typename Block, typename T>
bool quantize_blocks(const QuantizeArgs<T>& args, int64_t begin_block, int64_t end_block) {
  bool is_finite = true;
  T padded[kVecSize * kQuantizedBlock] = {};  // the last blocks, if they don't fill a vector
  for (int64_t block = begin_block; block < end_block; block += kVecSize) {
    const int64_t num_blocks = std::min(kVecSize, end_block - block);
    const T* weight = args.weight + block * kQuantizedBlock;
    if (num_blocks < kVecSize) {
      std::copy_n(weight, num_blocks * kQuantizedBlock, padded);
      weight = padded;
    }
    BlockLanes x;
    load_blocks(weight, x);
    is_finite = is_finite && are_finite(x, num_blocks);
    encode(x, num_blocks, args.out + block * Block::kBytes, Block{});
  }
  return is_finite;
}

template <typename T>
bool quantize(const QuantizeArgs<T>& args, int64_t begin_block, int64_t end_block) {
  switch (args.ggml_type) {
    case 2:
      return quantize_blocks<Q4_0>(args, begin_block, end_block);
    case 3:
      return quantize_blocks<Q4_1>(args, begin_block, end_block);
    default:
      return quantize_blocks<Q8_0>(args, begin_block, end_block);
  }
}
