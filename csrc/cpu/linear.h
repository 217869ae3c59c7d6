// The product of the op `linear`, on raw pointers: also a part of larger ops.
#pragma once

#include "kernels.h"

namespace pyengine {

// y = x W^T + b, on the pool's threads. Out is T or float. A row of y depends on its row of x and
// on the weights alone.
template <typename T, typename Out>
void run_linear(const LinearArgs<T, Out>& args);

}  // namespace pyengine
