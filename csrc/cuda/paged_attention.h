// Attention over the paged cache, for decodes, prompts and any mix (Dao et al. 2022; Kwon et al.
// 2023), by one warp for each 16 rows. A row is a query token with one of its heads.
//
// Exactness: what a row computes depends on its position alone. Keys come in tiles, of a size that
// follows from the head size, at multiples of it; a partition is kPartitionKeys of them, at multiples
// of that, with a softmax of its own; partitions are merged in ascending order. Tensor cores compute an
// element of a product from its row and column alone. A tile that a row doesn't see changes nothing
// in it. So it makes no difference which rows share a block, nor whether one block walks all
// partitions or several blocks share them and merge_kernel puts them together.
#pragma once

#include "tensor_core.h"
#include "warp.h"

namespace pyengine::cuda {

constexpr int kPartitionKeys = 256;
constexpr int kWarpRows = 16;  // those of a tensor core's product

template <typename T>
struct AttentionArgs {
  Pointer<const T> query;                  // [T, H, D], query_stride from token to token
  Pointer<const T> key_cache;              // [B, K, P, D], block_stride from block to block
  Pointer<const T> value_cache;            // the same
  Pointer<T> out;                          // [T, H, D]
  Pointer<const int32_t> block_tables;     // [S, max_blocks]
  Pointer<const int32_t> query_start_loc;  // [S + 1]
  Pointer<const int32_t> seq_lens;         // [S]
  Pointer<float> partial_out;              // [T, H, max_partitions, D], if num_splits > 1
  Pointer<float2> partial_state;           // [T, H, max_partitions]: the base and the sum
  int64_t query_stride, block_stride;
  int num_seqs, num_heads, num_kv_heads, max_blocks, sliding_window, max_partitions;
  int block_bits;     // P is two to the power of it
  int num_splits;     // blocks that share the partitions of a tile of rows
  float score_scale;  // of q . k, to powers of 2 or, with a soft cap, to what is capped
  float soft_cap;     // in powers of 2; 0: none
};

// Some neighbouring rows of a sequence: row r is token r / group with head r % group of those that
// share a key/value head.
struct RowTile {
  int seq, first_row, end_row;
  int first_token;         // of the sequence, in the flat batch
  int first_position;      // of first_token, in the sequence
  int first_key, end_key;  // what its rows see

  __device__ bool is_empty() const { return first_row >= end_row; }
  __device__ int first_partition() const { return first_key / kPartitionKeys; }
  __device__ int end_partition() const { return (end_key - 1) / kPartitionKeys + 1; }
  __device__ bool is_split(int num_splits) const {
    return num_splits > 1 && end_partition() - first_partition() > 1;
  }
};

// The keys that a token at `position` sees: [first, end).
struct SeenKeys {
  int first, end;
};

__device__ __forceinline__ SeenKeys seen_keys(int position, int sliding_window) {
  const int first = position - sliding_window + 1;
  return {sliding_window > 0 && first > 0 ? first : 0, position + 1};
}

// Rows of a sequence begin in the tile after the last one that rows before them could fill, and
// sequences leave at most one tile each unused: so tiles can be counted without knowing lengths.
template <typename T>
__device__ __forceinline__ int first_tile_of(const AttentionArgs<T>& args, int seq, int tile_rows) {
  const int group = args.num_heads / args.num_kv_heads;
  const int64_t rows = static_cast<int64_t>(args.query_start_loc[seq]) * group;
  return static_cast<int>(rows / tile_rows) + seq;
}

template <typename T>
__device__ RowTile find_tile(const AttentionArgs<T>& args, int tile, int tile_rows) {
  int low = 0, high = args.num_seqs;  // the last sequence whose first tile isn't after this one
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_tile_of(args, middle, tile_rows) <= tile ? low : high) = middle;
  }
  const int group = args.num_heads / args.num_kv_heads;
  RowTile found;
  found.seq = low;
  found.first_token = args.query_start_loc[low];
  const int query_len = args.query_start_loc[low + 1] - found.first_token;
  found.first_position = args.seq_lens[low] - query_len;
  found.first_row = (tile - first_tile_of(args, low, tile_rows)) * tile_rows;
  found.end_row = min(found.first_row + tile_rows, query_len * group);
  if (found.is_empty()) return found;
  const int window = args.sliding_window;
  found.first_key = seen_keys(found.first_position + found.first_row / group, window).first;
  found.end_key = seen_keys(found.first_position + (found.end_row - 1) / group, window).end;
  return found;
}

// exp2 of a difference from the largest score. Where there was no score yet, that is -infinity, and
// stands for any number.
__device__ __forceinline__ float weight(float score, float base) {
  return exp2_of(score - (base == -INFINITY ? 0.0f : base));
}

// Adds a later partition to a softmax: out, sum and base are of the keys before it.
struct Merge {
  float before, after;  // what the two are multiplied by
  float base;

  __device__ __forceinline__ Merge(float base_before, float base_after)
      : base(fmaxf(base_before, base_after)) {
    before = weight(base_before, base);
    after = weight(base_after, base);
  }
  __device__ __forceinline__ float operator()(float x_before, float x_after) const {
    return fmaf(x_after, after, x_before * before);
  }
};

// A block of threads that attends for a tile of rows: one warp for each 16 of them.
template <typename T, int kHeadSize, int kWarps>
class AttentionBlock {
 public:
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kTileRows = kWarps * kWarpRows;

  static constexpr int64_t shared_bytes() {
    return SharedMemory::bytes<T>(kTileRows * kRowSize) +
           SharedMemory::bytes<T>(4 * kTileElements) +
           SharedMemory::bytes<float>(kColumns * 4 * kThreads);
  }

  __device__ __forceinline__ AttentionBlock(const AttentionArgs<T>& args, const RowTile& tile,
                                            int kv_head)
      : args_(args), tile_(tile), kv_head_(kv_head), group_(args.num_heads / args.num_kv_heads) {
    SharedMemory shared;
    queries_ = shared.take<T>(kTileRows * kRowSize);
    tiles_ = shared.take<T>(4 * kTileElements);
    total_out_ = shared.take<float>(kColumns * 4 * kThreads);
    warp_row_ = tile.first_row + warp_index() * kWarpRows;
    num_rows_ = min(kWarpRows, tile.end_row - warp_row_);
    if (num_rows_ > 0) {
      early_ = seen_by(warp_row_);
      late_ = seen_by(warp_row_ + num_rows_ - 1);
    }
  }

  // All partitions that the rows see, to their results; or of them, if the block shares them with
  // others, every num_splits-th from the `split`-th on, each to memory of its own. Both by the same
  // loop: with a copy for each, the compiler would run out of registers.
  __device__ __forceinline__ void attend(bool is_split, int split) {
    float total_base[2] = {-INFINITY, -INFINITY}, total_sum[2] = {};
    if (!is_split) {
      for (int i = 0; i < kColumns * 4; ++i) total_out_[i * kThreads + threadIdx.x] = 0;
    }
    const int stride = is_split ? args_.num_splits : 1;
    attend_partitions(tile_.first_partition() + split, stride, [&](int partition) {
      if (is_split) {
        store_partition(partition);
      } else {
        add_to_total(total_base, total_sum);
      }
    });
    if (!is_split) store_total(total_sum);
  }

 private:
  static constexpr int kRowSize = kHeadSize + 8;  // in shared memory: rows start at all its banks
  static constexpr int kVectorSize = 8;           // elements that are copied at once
  static constexpr int kVectors = kHeadSize / kVectorSize;
  static constexpr int kColumns = kHeadSize / 8;               // of results, eight by eight
  static constexpr int kTileKeys = kHeadSize > 128 ? 32 : 64;  // as registers allow
  static constexpr int kTileElements = kTileKeys * kRowSize;

  __device__ __forceinline__ int position_of(int row) const {
    return tile_.first_position + row / group_;
  }
  __device__ __forceinline__ int64_t token_of(int row) const {
    return tile_.first_token + row / group_;
  }
  __device__ __forceinline__ int head_of(int row) const { return kv_head_ * group_ + row % group_; }
  __device__ __forceinline__ SeenKeys seen_by(int row) const {
    return seen_keys(position_of(row), args_.sliding_window);
  }

  // Where a lane's two neighbours of product n stand in a row.
  __device__ __forceinline__ static int column(int n) { return n * 8 + lane_index() % 4 * 2; }

  // Calls body(half, row) for those of the lane's two rows that there are.
  template <typename Body>
  __device__ __forceinline__ void for_each_row(const Body& body) const {
    PYENGINE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = lane_index() / 4 + half * 8;
      if (r < num_rows_) body(half, warp_row_ + r);
    }
  }

  __device__ __forceinline__ int begin_of(int partition) const {
    return max(tile_.first_key, partition * kPartitionKeys) / kTileKeys * kTileKeys;
  }
  __device__ __forceinline__ int end_of(int partition) const {
    return min(tile_.end_key, (partition + 1) * kPartitionKeys);
  }

  // Partitions from `partition` on, one in `stride`: after each, its softmax is in base_, sum_ and
  // out_ when on_partition is called. The next tile is copied while one is computed with.
  template <typename OnPartition>
  __device__ __forceinline__ void attend_partitions(int partition, int stride,
                                                    const OnPartition& on_partition) {
    if (partition >= tile_.end_partition()) return;
    load_queries();
    int first = begin_of(partition), place = 0;
    load_tile(first, place);
    commit_copies();
    clear();
    for (bool is_last = false; !is_last; place ^= 1) {
      int next = first + kTileKeys, next_partition = partition;
      if (next >= end_of(partition)) {
        next_partition = partition + stride;
        next = begin_of(next_partition);
      }
      is_last = next_partition >= tile_.end_partition();
      if (!is_last) load_tile(next, place ^ 1);
      commit_copies();
      wait_for_copies<1>();
      __syncthreads();
      if (num_rows_ > 0 && first < late_.end && first + kTileKeys > early_.first) {
        attend_tile(first, place);
      }
      __syncthreads();
      if (next_partition != partition) {
        // The weights of a row lie with four lanes.
        PYENGINE_UNROLL
        for (int half = 0; half < 2; ++half) {
          sum_[half] += __shfl_xor_sync(kAllLanes, sum_[half], 1);
          sum_[half] += __shfl_xor_sync(kAllLanes, sum_[half], 2);
        }
        on_partition(partition);
        clear();
      }
      first = next;
      partition = next_partition;
    }
  }

  // Merges the softmax of a partition into that of the partitions before it.
  __device__ __forceinline__ void add_to_total(float (&total_base)[2], float (&total_sum)[2]) {
    PYENGINE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Merge merge(total_base[half], base_[half]);
      total_base[half] = merge.base;
      total_sum[half] = merge(total_sum[half], sum_[half]);
      PYENGINE_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          float& x = total_out_[(n * 4 + i) * kThreads + threadIdx.x];
          x = merge(x, out_[n][i]);
        }
      }
    }
  }

  __device__ __forceinline__ void store_total(const float (&total_sum)[2]) const {
    for_each_row([&](int half, int row) {
      const Pointer<T> out =
          args_.out + (token_of(row) * args_.num_heads + head_of(row)) * kHeadSize;
      PYENGINE_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        const auto result = [&](int i) {
          return total_out_[(n * 4 + i) * kThreads + threadIdx.x] / total_sum[half];
        };
        *cast<uint32_t>(out + column(n)) = pack<T>(result(2 * half), result(2 * half + 1));
      }
    });
  }

  __device__ __forceinline__ void store_partition(int partition) const {
    for_each_row([&](int half, int row) {
      const int64_t at =
          (token_of(row) * args_.num_heads + head_of(row)) * args_.max_partitions + partition;
      if (lane_index() % 4 == 0) args_.partial_state[at] = {base_[half], sum_[half]};
      PYENGINE_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        *cast<float2>(args_.partial_out + at * kHeadSize + column(n)) = {out_[n][2 * half],
                                                                         out_[n][2 * half + 1]};
      }
    });
  }

  __device__ __forceinline__ void clear() {
    PYENGINE_UNROLL
    for (int half = 0; half < 2; ++half) {
      base_[half] = -INFINITY;
      sum_[half] = 0;
    }
    PYENGINE_UNROLL
    for (auto& products : out_) {
      for (float& x : products) x = 0;
    }
  }

  __device__ __forceinline__ void load_queries() const {
    for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kVectors; i += kThreads) {
      const int r = i / kVectors, at = i % kVectors * kVectorSize;
      const int row = tile_.first_row + r;
      const bool is_read = row < tile_.end_row;
      const int64_t from =
          is_read ? token_of(row) * args_.query_stride + head_of(row) * kHeadSize + at : 0;
      copy_async(cast<uint4>(queries_ + (r * kRowSize + at)), cast<const uint4>(args_.query + from),
                 is_read);
    }
  }

  // Begins to copy a tile's keys and values to one of two places. Rows that nobody sees are zeros.
  __device__ __forceinline__ void load_tile(int first, int place) const {
    const Pointer<T> keys = tiles_ + 2 * place * kTileElements;
    const Pointer<T> values = keys + kTileElements;
    const Pointer<const int32_t> block_table =
        args_.block_tables + static_cast<int64_t>(tile_.seq) * args_.max_blocks;
    for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kVectors; i += kThreads) {
      const int r = i / kVectors, at = i % kVectors * kVectorSize;
      const int key = first + r;
      const bool is_read = tile_.first_key <= key && key < tile_.end_key;
      int64_t from = 0;
      if (is_read) {
        const int64_t block = block_table[key >> args_.block_bits];
        const int offset = key & ((1 << args_.block_bits) - 1);
        from =
            block * args_.block_stride + ((kv_head_ << args_.block_bits) + offset) * kHeadSize + at;
      }
      const int to = r * kRowSize + at;
      copy_async(cast<uint4>(keys + to), cast<const uint4>(args_.key_cache + from), is_read);
      copy_async(cast<uint4>(values + to), cast<const uint4>(args_.value_cache + from), is_read);
    }
  }

  __device__ __forceinline__ void attend_tile(int first, int place) {
    const Pointer<const T> keys = tiles_ + 2 * place * kTileElements;
    const Pointer<const T> values = keys + kTileElements;
    float scores[kTileKeys / 8][4];
    multiply_keys(keys, scores);
    weigh(first, scores);
    // The weight of a value that a row doesn't see is 0; so is their product, if that is a number.
    const bool is_plain = are_finite(values, 0, late_.first - first) &&
                          are_finite(values, early_.end - first, kTileKeys);
    if (is_plain) {
      add_values(values, scores);
    } else {
      add_values_seen(first, values, scores);
    }
  }

  // scores = queries keys^T.
  __device__ __forceinline__ void multiply_keys(Pointer<const T> keys,
                                                float (&scores)[kTileKeys / 8][4]) const {
    PYENGINE_UNROLL
    for (auto& products : scores) {
      for (float& x : products) x = 0;
    }
    const int matrix = lane_index() / 8, r = lane_index() % 8;
    const Pointer<const T> query_row =
        queries_ + ((warp_index() * kWarpRows + matrix % 2 * 8 + r) * kRowSize + matrix / 2 * 8);
    const Pointer<const T> key_row = keys + ((matrix / 2 * 8 + r) * kRowSize + matrix % 2 * 8);
    PYENGINE_UNROLL
    for (int k = 0; k < kHeadSize; k += 16) {
      uint32_t query[4];
      load_matrices<T>(query, query_row + k);
      PYENGINE_UNROLL
      for (int n = 0; n < kTileKeys / 16; ++n) {
        uint32_t key[4];
        load_matrices<T>(key, key_row + (n * 16 * kRowSize + k));
        multiply_add<T>(scores[2 * n], query, {key[0], key[1]});
        multiply_add<T>(scores[2 * n + 1], query, {key[2], key[3]});
      }
    }
  }

  // Turns scores into weights, and scales what was summed before to them.
  __device__ __forceinline__ void weigh(int first, float (&scores)[kTileKeys / 8][4]) {
    const bool are_all_seen = late_.first <= first && first + kTileKeys <= early_.end;
    PYENGINE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const SeenKeys seen = seen_by(warp_row_ + lane_index() / 4 + half * 8);
      float largest = -INFINITY;
      PYENGINE_UNROLL
      for (int n = 0; n < kTileKeys / 8; ++n) {
        PYENGINE_UNROLL
        for (int i = 0; i < 2; ++i) {
          float& x = scores[n][2 * half + i];
          x *= args_.score_scale;
          if (args_.soft_cap > 0) x = tanhf(x) * args_.soft_cap;
          const int key = first + column(n) + i;
          if (!are_all_seen && (key < seen.first || key >= seen.end)) x = -INFINITY;
          largest = fmaxf(largest, x);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float base = fmaxf(base_[half], largest);
      const float decay = weight(base_[half], base);
      base_[half] = base;
      sum_[half] *= decay;
      PYENGINE_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        out_[n][2 * half] *= decay;
        out_[n][2 * half + 1] *= decay;
      }
      PYENGINE_UNROLL
      for (int n = 0; n < kTileKeys / 8; ++n) {
        PYENGINE_UNROLL
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = weight(scores[n][i], base);
          sum_[half] += scores[n][i];
        }
      }
    }
  }

  // Whether rows [begin, end) of the values are numbers, of those in the tile; for all lanes.
  __device__ __forceinline__ bool are_finite(Pointer<const T> values, int begin, int end) const {
    begin = max(begin, 0);
    end = min(end, kTileKeys);
    if (begin >= end) return true;
    bool is_found = false;
    for (int i = begin * kVectors + lane_index(); i < end * kVectors; i += kWarpSize) {
      const auto vector =
          *cast<const uint4>(values + (i / kVectors * kRowSize + i % kVectors * kVectorSize));
      for (const uint32_t word : {vector.x, vector.y, vector.z, vector.w}) {
        const float2 both = unpack<T>(word);
        is_found = is_found || !isfinite(both.x) || !isfinite(both.y);
      }
    }
    return !__any_sync(kAllLanes, is_found);
  }

  // The operand of 16 keys from `k` on and 16 columns from `n` on: for two products.
  __device__ __forceinline__ static void load_values(Pointer<const T> values, int k, int n,
                                                     uint32_t (&value)[4]) {
    const int matrix = lane_index() / 8, r = lane_index() % 8;
    load_matrices_transposed<T>(
        value, values + ((k + matrix % 2 * 8 + r) * kRowSize + n + matrix / 2 * 8));
  }

  // The weights of 16 keys from `k` on as the other operand.
  __device__ __forceinline__ static void round_weights(const float (&weights)[kTileKeys / 8][4],
                                                       int k, uint32_t (&rounded)[4]) {
    PYENGINE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto& products = weights[k / 8 + i / 2];
      rounded[i] = pack<T>(products[i % 2 * 2], products[i % 2 * 2 + 1]);
    }
  }

  // out += weights values.
  __device__ __forceinline__ void add_values(Pointer<const T> values,
                                             const float (&weights)[kTileKeys / 8][4]) {
    PYENGINE_UNROLL
    for (int k = 0; k < kTileKeys; k += 16) {
      uint32_t rounded[4];
      round_weights(weights, k, rounded);
      PYENGINE_UNROLL
      for (int n = 0; n < kColumns; n += 2) {
        uint32_t value[4];
        load_values(values, k, n * 8, value);
        multiply_add<T>(out_[n], rounded, {value[0], value[1]});
        multiply_add<T>(out_[n + 1], rounded, {value[2], value[3]});
      }
    }
  }

  // The same, row after row, with zeros in place of the values that a row doesn't see. For values
  // that are no numbers, hence seldom.
  __device__ __forceinline__ void add_values_seen(int first, Pointer<const T> values,
                                                  const float (&weights)[kTileKeys / 8][4]) {
    PYENGINE_UNROLL
    for (int n = 0; n < kColumns; n += 2) {
      for (int r = 0; r < num_rows_; ++r) {
        const SeenKeys seen = seen_by(warp_row_ + r);
        float out[2][4];
        for (int i = 0; i < 4; ++i) {
          out[0][i] = out_[n][i];
          out[1][i] = out_[n + 1][i];
        }
        PYENGINE_UNROLL
        for (int k = 0; k < kTileKeys; k += 16) {
          uint32_t rounded[4], value[4];
          round_weights(weights, k, rounded);
          load_values(values, k, n * 8, value);
          PYENGINE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int key = first + k + i % 2 * 8 + lane_index() % 4 * 2;
            if (key < seen.first || key >= seen.end) value[i] &= 0xffff0000u;
            if (key + 1 < seen.first || key + 1 >= seen.end) value[i] &= 0x0000ffffu;
          }
          multiply_add<T>(out[0], rounded, {value[0], value[1]});
          multiply_add<T>(out[1], rounded, {value[2], value[3]});
        }
        PYENGINE_UNROLL
        for (int half = 0; half < 2; ++half) {
          if (r != lane_index() / 4 + half * 8) continue;
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            out_[n][i] = out[0][i];
            out_[n + 1][i] = out[1][i];
          }
        }
      }
    }
  }

  const AttentionArgs<T>& args_;
  const RowTile& tile_;
  const int kv_head_, group_;
  Pointer<T> queries_;         // [kTileRows, kRowSize]
  Pointer<T> tiles_;           // two places of keys and values [kTileKeys, kRowSize]
  Pointer<float> total_out_;   // each thread's own [kColumns, 4], kThreads apart
  int warp_row_, num_rows_;    // the rows of this warp
  SeenKeys early_{}, late_{};  // what the first and the last of them see
  // The softmax of a partition so far. A lane has rows lane / 4 and 8 below of the warp's, and of
  // the columns of each product two neighbours.
  float base_[2], sum_[2];
  float out_[kColumns][4];
};

template <typename T, int kHeadSize, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize) attention_kernel(AttentionArgs<T> args) {
  using Block = AttentionBlock<T, kHeadSize, kWarps>;
  const RowTile tile = find_tile(args, static_cast<int>(blockIdx.x), Block::kTileRows);
  const int split = static_cast<int>(blockIdx.z);
  const bool is_split = tile.is_split(args.num_splits);
  if (tile.is_empty() || (split > 0 && !is_split)) return;
  Block block(args, tile, static_cast<int>(blockIdx.y));
  block.attend(is_split, split);
}

// Puts together what blocks have split, with the operations of add_to_total and store_total. A warp a row.
template <typename T, int kHeadSize, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize) merge_kernel(AttentionArgs<T> args) {
  const RowTile tile = find_tile(args, static_cast<int>(blockIdx.x), kWarps * kWarpRows);
  if (tile.is_empty() || !tile.is_split(args.num_splits)) return;
  const int group = args.num_heads / args.num_kv_heads;
  for (int row = tile.first_row + warp_index(); row < tile.end_row; row += kWarps) {
    const int64_t head = static_cast<int64_t>(blockIdx.y) * group + row % group;
    const int64_t token = tile.first_token + row / group;
    const int64_t at = (token * args.num_heads + head) * args.max_partitions;
    for (int i = lane_index(); i < kHeadSize; i += kWarpSize) {
      float base = -INFINITY, sum = 0, out = 0;
      for (int p = tile.first_partition(); p < tile.end_partition(); ++p) {
        const float2 state = args.partial_state[at + p];
        const Merge merge(base, state.x);
        base = merge.base;
        sum = merge(sum, state.y);
        out = merge(out, args.partial_out[(at + p) * kHeadSize + i]);
      }
      args.out[(token * args.num_heads + head) * kHeadSize + i] = from_float<T>(out / sum);
    }
  }
}

}  // namespace pyengine::cuda
