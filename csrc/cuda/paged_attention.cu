#include "paged_attention.h"

#include "launch.h"

#include <algorithm>
#include <cmath>

namespace pyengine::cuda {
namespace {

// So many blocks keep a GPU busy: where tiles of rows are fewer, blocks share their partitions.
constexpr int64_t kBusyBlocks = 2048;

// Calls body with the head size as a constant.
template <typename Body>
void dispatch_head_size(int64_t head_size, const Body& body) {
  const auto is_one_of = [&]<int... kSizes>(std::integer_sequence<int, kSizes...>) {
    return ((head_size == kSizes && (body(std::integral_constant<int, kSizes>{}), true)) || ...);
  };
  const bool is_found = is_one_of(std::integer_sequence<int, 64, 80, 96, 128, 256>{});
  STD_TORCH_CHECK(is_found, "query must have a head size of 64, 80, 96, 128 or 256, got ",
                  head_size);
}

template <typename T, int kHeadSize, int kWarps>
void run_attention(AttentionArgs<T> args, const Tensor& query, int64_t num_partitions) {
  using Block = AttentionBlock<T, kHeadSize, kWarps>;
  const int64_t rows = query.size(0) * (args.num_heads / args.num_kv_heads);
  const int64_t num_tiles = rows / Block::kTileRows + args.num_seqs;
  const int64_t num_splits =
      std::clamp<int64_t>(kBusyBlocks / (num_tiles * args.num_kv_heads), 1, num_partitions);
  args.num_splits = static_cast<int>(num_splits);
  const int64_t num_partials = num_splits > 1 ? query.size(0) * args.num_heads * num_partitions : 0;
  const Tensor partial_out = new_tensor(query, {num_partials, kHeadSize}, ScalarType::Float);
  const Tensor partial_state = new_tensor(query, {num_partials, 2}, ScalarType::Float);
  args.partial_out = pointer<float>(partial_out);
  args.partial_state = pointer<float2>(partial_state);
  const dim3 grid{grid_size(num_tiles), static_cast<unsigned>(args.num_kv_heads), 1};
  launch(query, attention_kernel<T, kHeadSize, kWarps>,
         dim3{grid.x, grid.y, static_cast<unsigned>(num_splits)}, Block::kThreads,
         Block::shared_bytes(), args);
  if (num_splits == 1) return;
  launch(query, merge_kernel<T, kHeadSize, kWarps>, grid, Block::kThreads, 0, args);
}

void check_block_size(int64_t block_size) {
  STD_TORCH_CHECK(block_size == 16 || block_size == 32,
                  "key_cache must have a block size of 16 or 32, got ", block_size);
}

}  // namespace

Tensor paged_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& block_tables, const Tensor& query_start_loc,
                       const Tensor& seq_lens, double scale, int64_t sliding_window,
                       double soft_cap) {
  check_paged_attention(query, key_cache, value_cache, block_tables, query_start_loc, seq_lens,
                        scale, sliding_window, soft_cap);
  check_tensor_core_dtype(query, "query");
  check_float_cache(key_cache);
  check_block_size(key_cache.size(2));
  const Tensor out =
      new_tensor(query, {query.size(0), query.size(1), query.size(2)}, query.scalar_type());
  if (query.size(0) == 0) return out;
  constexpr double kLog2E = 1.4426950408889634;
  const int64_t num_partitions = std::max<int64_t>(
      1, ceil_div<int64_t>(block_tables.size(1) * key_cache.size(2), kPartitionKeys));
  // With few rows a sequence, most warps of a large block would have none.
  const int64_t num_rows = query.size(0) * (query.size(1) / key_cache.size(1));
  const bool are_rows_few = num_rows <= seq_lens.size(0) * kWarpRows;
  dispatch_tensor_core(query.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const AttentionArgs<T> args{
        .query = pointer<const T>(query),
        .key_cache = pointer<const T>(key_cache),
        .value_cache = pointer<const T>(value_cache),
        .out = pointer<T>(out),
        .block_tables = pointer<const int32_t>(block_tables),
        .query_start_loc = pointer<const int32_t>(query_start_loc),
        .seq_lens = pointer<const int32_t>(seq_lens),
        .partial_out = {},
        .partial_state = {},
        .query_stride = query.stride(0),
        .block_stride = key_cache.stride(0),
        .num_seqs = static_cast<int>(seq_lens.size(0)),
        .num_heads = static_cast<int>(query.size(1)),
        .num_kv_heads = static_cast<int>(key_cache.size(1)),
        .max_blocks = static_cast<int>(block_tables.size(1)),
        .sliding_window = static_cast<int>(std::min<int64_t>(sliding_window, 1 << 30)),
        .max_partitions = static_cast<int>(num_partitions),
        .block_bits = key_cache.size(2) == 16 ? 4 : 5,
        .num_splits = 1,
        .score_scale = static_cast<float>(soft_cap > 0 ? scale / soft_cap : scale * kLog2E),
        .soft_cap = static_cast<float>(soft_cap * kLog2E),
    };
    dispatch_head_size(query.size(2), [&](auto head_size) {
      if (are_rows_few) {
        run_attention<T, head_size(), 1>(args, query, num_partitions);
      } else {
        run_attention<T, head_size(), 4>(args, query, num_partitions);
      }
    });
  });
  return out;
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) { m.impl("paged_attention", TORCH_BOX(&pyengine::cuda::paged_attention)); }
