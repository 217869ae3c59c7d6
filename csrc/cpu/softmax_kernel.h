// The two passes over a row of logits that sampling needs: the greatest logit of each block of
// kLogitsBlock tokens, and the softmax weights of a run of tokens. Included by kernel_table.inc
// inside a namespace.

// A NaN is never the greater of two: max() returns its second operand then.
inline void block_maxima(const float* logits, int64_t size, float* maxima) {
  for (int64_t begin = 0; begin < size; begin += kLogitsBlock) {
    const int64_t n = std::min(kLogitsBlock, size - begin);
    const float* block = logits + begin;
    Vec greatest = broadcast(-std::numeric_limits<float>::infinity());
    int64_t i = 0;
    for (; i + kVecSize <= n; i += kVecSize) greatest = max(load(block + i), greatest);
    float result = max_of(greatest);
    for (; i < n; ++i) result = block[i] > result ? block[i] : result;
    *maxima++ = result;
  }
}

// Dropped tokens, NaN and -inf get weight 0. Returns the sum of the weights: eight partial sums
// of every eighth weight, combined in a fixed order, whatever the instruction set.
inline double softmax_weights(const SoftmaxArgs& args, const float* logits, int64_t size,
                              float* weights) {
  const Vec greatest = broadcast(args.max), temperature = broadcast(args.temperature);
  const auto weigh = [&](Vec logit) { return exp((logit - greatest) / temperature); };
  int64_t i = 0;
  for (; i + kVecSize <= size; i += kVecSize) store(weights + i, weigh(load(logits + i)));
  if (i < size) store_n(weights + i, weigh(load_n(logits + i, size - i)), size - i);

  const float threshold = args.threshold;
  const int64_t num_ties = std::clamp<int64_t>(args.end_of_ties, 0, size);
  for (i = 0; i < num_ties; ++i) weights[i] = logits[i] >= threshold ? weights[i] : 0.0f;
  for (; i < size; ++i) weights[i] = logits[i] > threshold ? weights[i] : 0.0f;

  double partial[8] = {};
  for (i = 0; i + 8 <= size; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane)
      partial[lane] += static_cast<double>(weights[i + lane]);
  }
  for (; i < size; ++i) partial[i % 8] += static_cast<double>(weights[i]);
  return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
         ((partial[1] + partial[5]) + (partial[3] + partial[7]));
}
