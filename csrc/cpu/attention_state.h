// The softmax of a row of scores, tile by tile (Milakov and Gimelshein 2018; Dao et al. 2022), in
// float32 and in powers of 2. Included by kernel_table.inc inside a namespace, after tile_lanes.h.

// The softmax so far of some rows: out = sum of 2^(score - base) * value, sums = those of the
// weights 2^(score - base), lane by lane.
struct AttentionState {
  float* out;   // [rows, size]
  float* sums;  // [rows, kMaxVecSize]
  float* base;  // [rows], near the largest score; -infinity before the first key

  AttentionState(float* memory, int64_t rows, int64_t size)
      : out(memory), sums(out + rows * size), base(sums + rows * kMaxVecSize) {}

  void clear(int64_t rows) const {
    std::fill(out, base, 0.0f);
    std::fill(base, base + rows, -std::numeric_limits<float>::infinity());
  }
};

// A row's weights may grow to 2^kMaxRise before its base follows its largest score: that happens a
// few times in a row's life, and only then must what was summed be scaled down.
constexpr float kMaxRise = 8.0f;

// The keys of a tile that a row sees: [begin, end).
struct SeenKeys {
  int64_t begin, end;
};

// One row of scores in a tile, and what becomes of them.
template <typename T>
struct ScoreRow {
  using Lanes = TileLanes<T>;
  float* scores;              // [kTileKeys], overwritten
  float* factors;             // [kTileKeys / kWidth] lanes: of the values
  SeenKeys seen;              // in this row
  SeenKeys computed;          // scores there are, in whole vectors; other factors are not written
  const float* value_scales;  // [kTileKeys], or null

  // scores = cap(score * scale) for keys that are seen, -infinity for others. Returns the largest
  // in each lane. `scale_of(k)` is that of keys k, k + 1, ...
  template <typename ScaleOf>
  Vec scale(const ScaleOf& scale_of, float soft_cap) const {
    constexpr float kUnseen = -std::numeric_limits<float>::infinity();
    Vec largest = broadcast(kUnseen);
    for (int64_t k = computed.begin; k < computed.end; k += kVecSize) {
      Vec x = load(scores + k) * scale_of(k);
      if (soft_cap > 0) x = tanh(x) * broadcast(soft_cap);
      store(scores + k, x);
      largest = max(largest, x);
    }
    if (sees_all()) return largest;
    std::fill(scores + computed.begin, scores + seen.begin, kUnseen);
    std::fill(scores + seen.end, scores + computed.end, kUnseen);
    largest = broadcast(kUnseen);
    for (int64_t k = computed.begin; k < computed.end; k += kVecSize) {
      largest = max(largest, load(scores + k));
    }
    return largest;
  }

  // Raises the row's base if it must be, then turns scores into factors.
  void weigh(Vec largest, float* base, float* sums, float* out, int64_t size) const {
    if (any_greater(largest, broadcast(*base + kMaxRise))) {
      const float raised = max_of(largest);
      const Vec decay = Lanes::weight(broadcast(*base - raised));
      for (int64_t i = 0; i < size; i += kVecSize) store(out + i, load(out + i) * decay);
      store(sums, load(sums) * decay);
      *base = raised;
    }
    Vec sum = load(sums);
    for (int64_t k = computed.begin; k < computed.end; k += kVecSize) {
      const Vec weight = Lanes::weight(load(scores + k) - broadcast(*base));
      if (value_scales != nullptr) {
        sum = sum + weight;
        Lanes::store_rounded(factors, k, weight * load(value_scales + k));
      } else {
        sum = sum + Lanes::store_rounded(factors, k, weight);
      }
    }
    store(sums, sum);
    // A key that is not seen has weight 0, but its value's scale may be a NaN.
    if (value_scales != nullptr && !sees_all()) {
      constexpr int64_t kBytes = sizeof(float) / Lanes::kWidth;
      char* const bytes = reinterpret_cast<char*>(factors);
      std::fill(bytes + computed.begin * kBytes, bytes + seen.begin * kBytes, char{0});
      std::fill(bytes + seen.end * kBytes, bytes + computed.end * kBytes, char{0});
    }
  }

  bool sees_all() const { return seen.begin <= computed.begin && seen.end >= computed.end; }
};
