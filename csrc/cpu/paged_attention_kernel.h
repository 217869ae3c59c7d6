// Attention over the paged cache; what makes a row's result independent of its company is in
// attention_plan.h. Included by kernel_table.inc inside a namespace, after attention_state.h.
//
// A tile of keys is laid out transposed, [head_size][kTileKeys], so that a vector of scores takes
// one key per lane; a tile of values keeps its rows. All rows of an item then use both. A row
// leaves out what it does not see: tiles outside its range altogether, other keys by a score of
// -infinity, hence a factor of 0 for their values. Where 0 times a value is not 0, the value is left
// out of the sum, so that not even a NaN gets through.
//
// Rows of an int8 cache end in a scale. Those of keys join the scores, those of values the factors.

template <typename T, typename C>
struct AttentionItemKernel {
  using Lanes = TileLanes<T>;
  static constexpr int64_t kWidth = Lanes::kWidth;
  static constexpr int64_t kFactorLanes = kTileKeys / kWidth;
  static constexpr float kLog2E = 1.44269504f;

  const AttentionArgs<T, C>& args;
  const AttentionItem& item;
  const AttentionItem* following;  // what the thread does after it, or null
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int64_t rows = item.num_tokens * group;
  const int64_t size = (args.head_size + kVecSize - 1) / kVecSize * kVecSize;  // padded row
  const int64_t lanes = (args.head_size + kWidth - 1) / kWidth;
  const float score_scale = args.soft_cap > 0 ? args.scale / args.soft_cap : args.scale * kLog2E;
  const float soft_cap = args.soft_cap * kLog2E;
  // Scratch memory, attention_scratch_size floats.
  float* keys;          // lanes of [lanes, kTileKeys]
  float* values;        // lanes of [kFactorLanes, size]
  float* key_scales;    // [kTileKeys], times score_scale
  float* value_scales;  // [kTileKeys]
  float* edge;          // lanes of [size], a row of `values` with one element kept
  float* query;         // lanes of [rows, lanes]
  AttentionState partition, total;

  AttentionItemKernel(const AttentionArgs<T, C>& args_, const AttentionItem& item_,
                      const AttentionItem* following_, float* scratch)
      : args(args_),
        item(item_),
        following(following_),
        keys(scratch),
        values(keys + kTileKeys * size),
        key_scales(values + kTileKeys * size),
        value_scales(key_scales + kTileKeys),
        edge(value_scales + kTileKeys),
        query(edge + size),
        partition(query + rows * size, rows, size),
        total(partition.out + attention_state_size(rows, size), rows, size) {}

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

  SeenKeys seen_keys(int64_t token, int64_t first) const {
    return {std::max<int64_t>(0, first_key(token) - first),
            std::min(kTileKeys, end_key(token) - first)};
  }

  // Where the keys and values of a tile are: some item's, of the positions that it sees, and zeros
  // in place of others.
  struct TileRows {
    const C* keys[kTileKeys];
    const C* values[kTileKeys];
  };

  void find_rows(const AttentionItem& of, int64_t first, TileRows& found) const {
    static constexpr C kZeros[cache_row_size<C>(kMaxHeadSize)] = {};
    const int64_t begin = std::max<int64_t>(0, of.first_key - first);
    const int64_t end = std::min(kTileKeys, of.end_key - first);
    std::fill(found.keys, found.keys + kTileKeys, kZeros);
    std::fill(found.values, found.values + kTileKeys, kZeros);
    const int32_t* table = args.block_tables + of.seq * args.max_blocks;
    const int64_t row_size = cache_row_size<C>(args.head_size);
    int64_t block = (first + begin) / args.block_size, offset = (first + begin) % args.block_size;
    for (int64_t k = begin; k < end; ++block, offset = 0) {
      int64_t at =
          table[block] * args.block_stride + (of.kv_head * args.block_size + offset) * row_size;
      const int64_t stop = std::min(end, k + args.block_size - offset);
      for (; k < stop; ++k, at += row_size) {
        found.keys[k] = args.key_cache + at;
        found.values[k] = args.value_cache + at;
      }
    }
  }

  // The rows of the tile that comes after that at `first`: of this item, or of the one that follows.
  void find_next_rows(int64_t first, TileRows& found) const {
    if (first + kTileKeys < item.stop_key()) {
      find_rows(item, first + kTileKeys, found);
    } else if (following != nullptr) {
      find_rows(*following, following->start_key() / kTileKeys * kTileKeys, found);
    } else {
      find_rows(item, first, found);
    }
  }

  void load_scales(const TileRows& tile) const {
    if constexpr (kIsScaled<C>) {
      for (int64_t k = 0; k < kTileKeys; ++k) {
        float scale;
        std::memcpy(&scale, tile.keys[k] + args.head_size, sizeof scale);
        key_scales[k] = scale * score_scale;
        std::memcpy(value_scales + k, tile.values[k] + args.head_size, sizeof scale);
      }
    }
  }

  bool are_finite(const C* const* rows_begin, const C* const* rows_end) const {
    Vec zeros = broadcast(0.0f);
    for (const C* const* row = rows_begin; row < rows_end; ++row) {
      for (int64_t i = 0; i < args.head_size; i += kVecSize) {
        const int64_t n = std::min(kVecSize, args.head_size - i);
        const Vec x = n == kVecSize ? load(*row + i) : load_n(*row + i, n);
        zeros = zeros + (x - x);
      }
    }
    return sum(zeros) == 0.0f;
  }

  // Adds factors * values of keys [seen.begin, seen.end) of the tile to a row's sums, and nothing
  // of the other keys of a lane that also holds one of these.
  void add_values_seen(const float* factors, SeenKeys seen, float* out) const {
    const auto add_edge = [&](int64_t lane, int64_t element) {
      const float* row = values + lane * size;
      for (int64_t i = 0; i < size; i += kVecSize) {
        store(edge + i, Lanes::keep_element(load(row + i), element));
      }
      multiply<Lanes, true>(factors + lane, kFactorLanes, edge, size, 0, 1, out, size, 1, size);
    };
    int64_t begin = seen.begin;
    if (begin % kWidth != 0) {
      add_edge(begin / kWidth, 1);
      ++begin;
    }
    if (begin >= seen.end) return;
    multiply<Lanes, true>(factors, kFactorLanes, values, size, begin / kWidth, seen.end / kWidth,
                          out, size, 1, size);
    if (seen.end % kWidth != 0) add_edge(seen.end / kWidth, 0);
  }

  // One tile for rows [row, row + num_rows), all of which see some of its keys.
  void attend_tile(const AttentionState& state, const TileRows& tile, int64_t first, int64_t row,
                   int64_t num_rows) const {
    alignas(64) float scores[kTileRows * kTileKeys];
    alignas(64) float factors[kTileRows * kFactorLanes];
    // Later tokens see later keys.
    const SeenKeys early = seen_keys(row / group, first);
    const SeenKeys late = seen_keys((row + num_rows - 1) / group, first);
    const SeenKeys computed = {early.begin / kVecSize * kVecSize,
                               (late.end + kVecSize - 1) / kVecSize * kVecSize};
    multiply<Lanes, false>(query + row * lanes, lanes, keys + computed.begin, kTileKeys, 0, lanes,
                           scores + computed.begin, kTileKeys, num_rows,
                           computed.end - computed.begin);
    SeenKeys seen[kTileRows];
    for (int64_t r = 0; r < num_rows; ++r) {
      seen[r] = seen_keys((row + r) / group, first);
      const ScoreRow<T> scored{scores + r * kTileKeys, factors + r * kFactorLanes, seen[r],
                               computed, kIsScaled<C> ? value_scales : nullptr};
      const auto scale_of = [&](int64_t k) {
        return kIsScaled<C> ? load(key_scales + k) : broadcast(score_scale);
      };
      scored.weigh(scored.scale(scale_of, soft_cap), state.base + row + r,
                   state.sums + (row + r) * kMaxVecSize, state.out + (row + r) * size, size);
    }
    float* out = state.out + row * size;
    // Values that some of the rows see and some don't.
    if (kIsScaled<C> || (are_finite(tile.values + early.begin, tile.values + late.begin) &&
                         are_finite(tile.values + early.end, tile.values + late.end))) {
      multiply<Lanes, true>(factors, kFactorLanes, values, size, early.begin / kWidth,
                            (late.end + kWidth - 1) / kWidth, out, size, num_rows, size);
    } else {
      for (int64_t r = 0; r < num_rows; ++r) {
        add_values_seen(factors + r * kFactorLanes, seen[r], out + r * size);
      }
    }
  }

  // All keys of partition `index` that the item's rows see.
  void attend_partition(int64_t index, const AttentionState& state) const {
    state.clear(rows);
    const int64_t begin = std::max(item.first_key, index * kPartitionKeys);
    const int64_t end = std::min(item.end_key, (index + 1) * kPartitionKeys);
    TileRows found[2];
    TileRows *tile = &found[0], *next = &found[1];
    int64_t first = begin / kTileKeys * kTileKeys;
    find_rows(item, first, *tile);
    for (; first < end; first += kTileKeys, std::swap(tile, next)) {
      find_next_rows(first, *next);
      transpose_rows<T>(tile->keys, next->keys, args.head_size, keys);
      interleave_rows<T>(tile->values, next->values, args.head_size, size, values);
      load_scales(*tile);
      // The tokens that see some of this tile stand in a row: later ones have left it behind,
      // earlier ones have not come to it.
      int64_t token = 0, stop = item.num_tokens;
      while (end_key(token) <= first) ++token;
      while (first_key(stop - 1) >= first + kTileKeys) --stop;
      for (int64_t row = token * group; row < stop * group; row += kTileRows) {
        attend_tile(state, *tile, first, row, std::min(kTileRows, stop * group - row));
      }
    }
  }

  // Takes a partition's rows into the total, which holds the partitions before it.
  void merge(const AttentionState& part) const {
    constexpr float kEmpty = -std::numeric_limits<float>::infinity();
    for (int64_t row = 0; row < rows; ++row) {
      const Vec part_sums = load(part.sums + row * kMaxVecSize);
      if (part.base[row] == kEmpty && sum(part_sums) == 0.0f) continue;
      const float base = std::max(total.base[row], part.base[row]);
      const Vec before = Lanes::weight(broadcast(total.base[row] - base));
      const Vec now = Lanes::weight(broadcast(part.base[row] - base));
      const auto add = [&](float* to, Vec x) { store(to, fma(x, now, load(to) * before)); };
      total.base[row] = base;
      add(total.sums + row * kMaxVecSize, part_sums);
      for (int64_t i = 0; i < size; i += kVecSize) {
        add(total.out + row * size + i, load(part.out + row * size + i));
      }
    }
  }

  // Divides by the softmax's sum and writes the result. A zero comes out as +0, whatever it met.
  void write_out() const {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t head = item.kv_head * group + row % group;
      T* to =
          args.out + ((item.first_token + row / group) * args.num_heads + head) * args.head_size;
      const float* from = total.out + row * size;
      const Vec divisor = broadcast(sum(load(total.sums + row * kMaxVecSize)));
      for (int64_t i = 0; i < args.head_size; i += kVecSize) {
        const int64_t n = std::min(kVecSize, args.head_size - i);
        const Vec x = load(from + i) / divisor + broadcast(0.0f);
        n == kVecSize ? store(to + i, x) : store_n(to + i, x, n);
      }
    }
  }
};

// Runs a whole item to its results, or a split item to its partial state.
template <typename T, typename C>
void attend_item(const AttentionArgs<T, C>& args, const AttentionItem& item,
                 const AttentionItem* following, float* scratch, float* partials) {
  const AttentionItemKernel<T, C> kernel(args, item, following, scratch);
  kernel.load_query();
  if (item.partial >= 0) {
    kernel.attend_partition(item.first_partition,
                            AttentionState(partials + item.partial, kernel.rows, kernel.size));
    return;
  }
  // The first partition is the total, to the bit: nothing is scaled by 1 and added to 0.
  kernel.attend_partition(item.first_partition, kernel.total);
  for (int64_t p = item.first_partition + 1; p < item.end_partition; ++p) {
    kernel.attend_partition(p, kernel.partition);
    kernel.merge(kernel.partition);
  }
  kernel.write_out();
}

// Runs items [begin, end).
template <typename T, typename C>
void attend(const AttentionArgs<T, C>& args, const AttentionItem* begin, const AttentionItem* end,
            float* scratch, float* partials) {
  for (const AttentionItem* item = begin; item < end; ++item) {
    attend_item(args, *item, item + 1 < end ? item + 1 : nullptr, scratch, partials);
  }
}

// Merges the partial states of an item that was split.
template <typename T, typename C>
void merge_attention(const AttentionArgs<T, C>& args, const AttentionItem& item, float* scratch,
                     float* partials) {
  const AttentionItemKernel<T, C> kernel(args, item, nullptr, scratch);
  kernel.total.clear(kernel.rows);
  float* state = partials + item.partial;
  for (int64_t p = item.first_partition; p < item.end_partition; ++p) {
    kernel.merge(AttentionState(state, kernel.rows, kernel.size));
    state += attention_state_size(kernel.rows, args.head_size);
  }
  kernel.write_out();
}
