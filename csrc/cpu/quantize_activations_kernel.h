// Rows of activations to groups of int8. Included by kernel_table.inc inside a namespace.

// The scale is the greatest magnitude / 127; a group of magnitudes below 2^-120, whose reciprocal
// might not be a number, becomes 0. What is not finite leaves NaN in `poison`.
template <typename T>
void quantize_group(const T* x, ActivationGroup& group, Vec& poison) {
  constexpr int64_t kVecs = kQuantizedGroup / kVecSize;
  Vec values[kVecs];
  Vec largest = broadcast(0.0f);
  for (int64_t v = 0; v < kVecs; ++v) {
    values[v] = load(x + v * kVecSize);
    largest = max(largest, max(values[v], broadcast(0.0f) - values[v]));
    poison = fma(values[v], broadcast(0.0f), poison);
  }
  const float magnitude = max_of(largest);
  const bool is_normal = magnitude >= 0x1p-120f;
  group.scale = is_normal ? magnitude / 127.0f : 0.0f;
  const Vec inverse = broadcast(is_normal ? 127.0f / magnitude : 0.0f);
  int32_t sums[2] = {};
  for (int64_t v = 0; v < kVecs; ++v) {
    // max returns its second argument when the first is NaN.
    const Vec scaled = max(values[v] * inverse, broadcast(-127.0f));
    const Ints rounded = to_ints(min(scaled, broadcast(127.0f)));
    sums[2 * v / kVecs] += store_int8(group.values + v * kVecSize, rounded);
  }
  const int32_t sum_of_values = sums[0] + sums[1];
  group.scaled_sum = group.scale * static_cast<float>(sum_of_values);
  group.offset_8 = -8 * sum_of_values;
  group.offset_16 = -16 * sum_of_values;
  group.offset_128 = -128 * sum_of_values;
  group.offset_32[0] = -32 * sums[0];
  group.offset_32[1] = -32 * sums[1];
}

// A row that holds NaN or infinity has NaN for scales, which come out of whatever it is multiplied
// by.
template <typename T>
void quantize_activations(const QuantizeActivationsArgs<T>& args, int64_t begin_row,
                          int64_t end_row) {
  const int64_t num_groups = args.num_inputs / kQuantizedGroup;
  for (int64_t row = begin_row; row < end_row; ++row) {
    const T* x = args.x + row * args.x_stride;
    ActivationGroup* groups = args.out + row * num_groups;
    Vec poison = broadcast(0.0f);
    for (int64_t g = 0; g < num_groups; ++g) {
      quantize_group(x + g * kQuantizedGroup, groups[g], poison);
    }
    const float spoilt = sum(poison);
    if (spoilt != 0.0f) {
      for (int64_t g = 0; g < num_groups; ++g) groups[g].scale = groups[g].scaled_sum = spoilt;
    }
  }
}
