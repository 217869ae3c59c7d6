// The chosen instruction set as an operator. It takes no tensor that could select a backend.
#include "isa.h"

#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY_IMPL(pyengine, CompositeExplicitAutograd, m) {
  m.impl("isa_name", TORCH_BOX(&pyengine::isa_name));
}
