// The schema of every operator: one definition, for all backends.
#include "ops.h"

#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(pyengine, m) {
  m.def("silu_and_mul(Tensor x) -> Tensor");
}
