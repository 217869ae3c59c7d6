// The operators of the CUDA backend as pyengine_emulated.*: the same sources, run by simt.h on
// tensors of the CPU. Built for tests alone.
#include "../op_schemas.h"
#include "simt.h"

namespace pyengine {

// The order in which the threads of blocks take their turns from now on.
void set_descending(bool is_descending) { simt::Block::current().set_descending(is_descending); }

}  // namespace pyengine

STABLE_TORCH_LIBRARY(pyengine_emulated, m) {
  pyengine::define_ops(m);
  m.def("set_descending(bool is_descending) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(pyengine_emulated, CompositeExplicitAutograd, m) {
  m.impl("set_descending", TORCH_BOX(&pyengine::set_descending));
}
