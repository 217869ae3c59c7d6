// The choice of an instruction set, made once at load.
#pragma once

#include <string>

#include "kernels.h"

namespace pyengine {

// The kernels for the best instruction set that this processor has, or for the one that
// PYENGINE_ISA (portable, avx2, avx512) names.
const Kernels& kernels();

// "portable", "avx2" or "avx512".
std::string isa_name();

}  // namespace pyengine
