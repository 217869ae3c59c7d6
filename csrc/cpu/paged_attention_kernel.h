// Attention over the paged cache with an online softmax (Milakov and Gimelshein 2018; Dao et al.
// 2022), in float32; what makes a row's result independent of its company is in attention_plan.h.
// Included by kernel_table.inc inside a namespace, after tile_lanes.h.
//
// A tile of keys is laid out transposed, [head_size][kTileKeys], so that a vector of scores takes
// one key per lane; a tile of values keeps its rows. All rows of an item then use both. A row
// leaves out what it does not see: tiles outside its range altogether, other keys by a score of
// -infinity and by leaving them out of the sum over values, so that not even a NaN gets through.

// The softmax so far of some rows: out = sum of exp(score - max) * value, sum = that of the
// factors.
struct AttentionState {
  float* out;  // [rows, size]
  float* max;  // [rows], -infinity before the first key
  float* sum;  // [rows]

  AttentionState(float* memory, int64_t rows, int64_t size)
      : out(memory), max(memory + rows * size), sum(max + rows) {}

  void clear(int64_t rows, int64_t size) const {
    std::fill(out, out + rows * size, 0.0f);
    std::fill(max, max + rows, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + rows, 0.0f);
  }
};

template <typename T>
struct AttentionItemKernel {
  using Lanes = TileLanes<T>;
  static constexpr int64_t kWidth = Lanes::kWidth;

  const AttentionArgs<T>& args;
  const AttentionItem& item;
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int64_t rows = item.num_tokens * group;
  const int64_t size = (args.head_size + kVecSize - 1) / kVecSize * kVecSize;  // padded row
  const int64_t lanes = (args.head_size + kWidth - 1) / kWidth;
  // Scratch memory, attention_scratch_size floats.
  float* keys;    // lanes of [lanes, kTileKeys]
  float* values;  // lanes of [kTileKeys / kWidth, size]
  float* edge;    // lanes of [size], a row of `values` with one element kept
  float* query;   // lanes of [rows, lanes]
  AttentionState partition, total;

  AttentionItemKernel(const AttentionArgs<T>& args_, const AttentionItem& item_, float* scratch)
      : args(args_),
        item(item_),
        keys(scratch),
        values(keys + kTileKeys * size),
        edge(values + kTileKeys * size),
        query(edge + size),
        partition(query + rows * size, rows, size),
        total(partition.sum + rows, rows, size) {}

  // The keys that a token of the item sees: [first_key, end_key).
  int64_t end_key(int64_t token) const { return item.first_position + token + 1; }
  int64_t first_key(int64_t token) const {
    const int64_t window = args.sliding_window;
    return window > 0 ? std::max<int64_t>(0, end_key(token) - window) : 0;
  }

  void load_query() const {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t head = item.kv_head * group + row % group;
      const T* from =
          args.query + (item.first_token + row / group) * args.query_stride + head * args.head_size;
      float* to = query + row * lanes;
      for (int64_t i = 0; i < lanes; i += kVecSize) {
        const int64_t n = std::min(kVecSize, lanes - i);
        const Vec x = Lanes::load_lanes(from + i * kWidth,
                                        std::min(kVecSize * kWidth, args.head_size - i * kWidth));
        n == kVecSize ? store(to + i, x) : store_n(to + i, x, n);
      }
    }
  }

  // Where the keys and values of a tile are; zeros for positions that no row of the item sees.
  struct TileRows {
    const T* keys[kTileKeys];
    const T* values[kTileKeys];
  };

  void find_rows(int64_t first, TileRows& found) const {
    static constexpr T kZeros[kMaxHeadSize] = {};
    const int64_t begin = std::max<int64_t>(0, item.first_key - first);
    const int64_t end = std::min(kTileKeys, item.end_key - first);
    std::fill(found.keys, found.keys + kTileKeys, kZeros);
    std::fill(found.values, found.values + kTileKeys, kZeros);
    const int32_t* table = args.block_tables + item.seq * args.max_blocks;
    int64_t block = (first + begin) / args.block_size, offset = (first + begin) % args.block_size;
    for (int64_t k = begin; k < end; ++block, offset = 0) {
      int64_t at = ((table[block] * args.num_kv_heads + item.kv_head) * args.block_size + offset) *
                   args.head_size;
      const int64_t stop = std::min(end, k + args.block_size - offset);
      for (; k < stop; ++k, at += args.head_size) {
        found.keys[k] = args.key_cache + at;
        found.values[k] = args.value_cache + at;
      }
    }
  }

  // Scores of one row in a tile: scaled, capped, -infinity outside of [begin, end). Returns the
  // largest of them and `max`.
  float finish_scores(float* scores, int64_t begin, int64_t end, float max_before) const {
    const Vec scale = broadcast(args.scale), cap = broadcast(args.soft_cap);
    for (int64_t k = 0; k < kTileKeys; k += kVecSize) {
      Vec x = load(scores + k) * scale;
      if (args.soft_cap > 0) x = tanh(x / cap) * cap;
      store(scores + k, x);
    }
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    std::fill(scores, scores + begin, kMasked);
    std::fill(scores + end, scores + kTileKeys, kMasked);
    Vec largest = broadcast(max_before);
    for (int64_t k = 0; k < kTileKeys; k += kVecSize) largest = max(largest, load(scores + k));
    return max_of(largest);
  }

  // Adds factors[r] * values of keys [begin, end) of the tile to the rows' sums. Lanes at the edge
  // that hold a key outside of the range are masked, value and all.
  void add_values(const float* factors, int64_t begin, int64_t end, float* out,
                  int64_t num_rows) const {
    constexpr int64_t kStride = kTileKeys / kWidth;
    const auto add_edge = [&](int64_t lane, int64_t element) {
      const float* row = values + lane * size;
      for (int64_t i = 0; i < size; i += kVecSize) {
        store(edge + i, Lanes::keep_element(load(row + i), element));
      }
      multiply<Lanes>(factors + lane, kStride, edge, size, 0, 1, out, size, num_rows, size);
    };
    if (begin % kWidth != 0) {
      add_edge(begin / kWidth, 1);
      ++begin;
    }
    if (begin < end) {
      multiply<Lanes>(factors, kStride, values, size, begin / kWidth, end / kWidth, out, size,
                      num_rows, size);
      if (end % kWidth != 0) add_edge(end / kWidth, 0);
    }
  }

  // One tile for rows [row, row + num_rows), all of which see some of its keys.
  void attend_tile(const AttentionState& state, int64_t first, int64_t row,
                   int64_t num_rows) const {
    alignas(64) float scores[kTileRows * kTileKeys] = {};
    alignas(64) float factors[kTileRows * kTileKeys / kWidth];
    int64_t begin[kTileRows], end[kTileRows];
    float new_max[kTileRows], decay[kTileRows];

    multiply<Lanes>(query + row * lanes, lanes, keys, kTileKeys, 0, lanes, scores, kTileKeys,
                    num_rows, kTileKeys);
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t token = (row + r) / group;
      begin[r] = std::max<int64_t>(0, first_key(token) - first);
      end[r] = std::min(kTileKeys, end_key(token) - first);
      new_max[r] = finish_scores(scores + r * kTileKeys, begin[r], end[r], state.max[row + r]);
    }
    const Vec change = load_n(state.max + row, num_rows) - load_n(new_max, num_rows);
    store_n(decay, exp(change), num_rows);
    bool same_range = true;
    for (int64_t r = 0; r < num_rows; ++r) {
      Vec sums = broadcast(0.0f);
      for (int64_t k = 0; k < kTileKeys; k += kVecSize) {
        const Vec p = exp(load(scores + r * kTileKeys + k) - broadcast(new_max[r]));
        sums = sums + Lanes::store_rounded(factors + r * kTileKeys / kWidth, k, p);
      }
      state.max[row + r] = new_max[r];
      state.sum[row + r] = state.sum[row + r] * decay[r] + sum(sums);
      if (decay[r] != 1.0f) scale_row(state.out + (row + r) * size, decay[r]);
      same_range = same_range && begin[r] == begin[0] && end[r] == end[0];
    }
    float* out = state.out + row * size;
    if (same_range) {
      add_values(factors, begin[0], end[0], out, num_rows);
    } else {
      for (int64_t r = 0; r < num_rows; ++r) {
        add_values(factors + r * kTileKeys / kWidth, begin[r], end[r], out + r * size, 1);
      }
    }
  }

  void scale_row(float* out, float factor) const {
    for (int64_t i = 0; i < size; i += kVecSize) store(out + i, load(out + i) * broadcast(factor));
  }

  // All keys of partition `index` that the item's rows see.
  void attend_partition(int64_t index, const AttentionState& state) const {
    state.clear(rows, size);
    const int64_t begin = std::max(item.first_key, index * kPartitionKeys);
    const int64_t end = std::min(item.end_key, (index + 1) * kPartitionKeys);
    const int64_t last_tile = (end - 1) / kTileKeys * kTileKeys;
    const int64_t first_tile = begin / kTileKeys * kTileKeys;
    TileRows found[2];
    TileRows *tile = &found[0], *next = &found[1];
    find_rows(first_tile, *tile);
    for (int64_t first = first_tile; first < end; first += kTileKeys, std::swap(tile, next)) {
      find_rows(std::min(first + kTileKeys, last_tile), *next);
      transpose_rows(tile->keys, next->keys, args.head_size, keys);
      interleave_rows(tile->values, next->values, args.head_size, size, values);
      // The tokens that see some of this tile stand in a row: later ones have left it behind,
      // earlier ones have not come to it.
      int64_t token = 0, stop = item.num_tokens;
      while (end_key(token) <= first) ++token;
      while (first_key(stop - 1) >= first + kTileKeys) --stop;
      for (int64_t row = token * group; row < stop * group; row += kTileRows) {
        attend_tile(state, first, row, std::min(kTileRows, stop * group - row));
      }
    }
  }

  // Takes a partition's rows into the total, which holds the partitions before it.
  void merge(const AttentionState& part) const {
    constexpr float kEmpty = -std::numeric_limits<float>::infinity();
    for (int64_t row = 0; row < rows; ++row) {
      if (part.max[row] == kEmpty && part.sum[row] == 0.0f) continue;
      const float largest = std::max(total.max[row], part.max[row]);
      const float change[2] = {total.max[row] - largest, part.max[row] - largest};
      float factor[2];
      store_n(factor, exp(load_n(change, 2)), 2);
      total.max[row] = largest;
      total.sum[row] = total.sum[row] * factor[0] + part.sum[row] * factor[1];
      float* to = total.out + row * size;
      const float* from = part.out + row * size;
      for (int64_t i = 0; i < size; i += kVecSize) {
        const Vec before = load(to + i) * broadcast(factor[0]);
        store(to + i, fma(load(from + i), broadcast(factor[1]), before));
      }
    }
  }

  // Divides by the softmax's sum and writes the result.
  void write_out() const {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t head = item.kv_head * group + row % group;
      T* to =
          args.out + ((item.first_token + row / group) * args.num_heads + head) * args.head_size;
      const float* from = total.out + row * size;
      const Vec divisor = broadcast(total.sum[row]);
      for (int64_t i = 0; i < args.head_size; i += kVecSize) {
        const int64_t n = std::min(kVecSize, args.head_size - i);
        const Vec x = load(from + i) / divisor;
        n == kVecSize ? store(to + i, x) : store_n(to + i, x, n);
      }
    }
  }
};

// Runs a whole item to its results, or a split item to its partial state.
template <typename T>
void attend(const AttentionArgs<T>& args, const AttentionItem& item, float* scratch,
            float* partials) {
  const AttentionItemKernel<T> kernel(args, item, scratch);
  kernel.load_query();
  if (item.partial >= 0) {
    kernel.attend_partition(item.first_partition,
                            AttentionState(partials + item.partial, kernel.rows, kernel.size));
    return;
  }
  kernel.total.clear(kernel.rows, kernel.size);
  for (int64_t p = item.first_partition; p < item.end_partition; ++p) {
    kernel.attend_partition(p, kernel.partition);
    kernel.merge(kernel.partition);
  }
  kernel.write_out();
}

// Merges the partial states of an item that was split.
template <typename T>
void merge_attention(const AttentionArgs<T>& args, const AttentionItem& item, float* scratch,
                     float* partials) {
  const AttentionItemKernel<T> kernel(args, item, scratch);
  kernel.total.clear(kernel.rows, kernel.size);
  float* state = partials + item.partial;
  for (int64_t p = item.first_partition; p < item.end_partition; ++p) {
    kernel.merge(AttentionState(state, kernel.rows, kernel.size));
    state += attention_state_size(kernel.rows, args.head_size);
  }
  kernel.write_out();
}
