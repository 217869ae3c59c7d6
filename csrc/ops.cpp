#include "op_schemas.h"

STABLE_TORCH_LIBRARY(pyengine, m) { pyengine::define_ops(m); }
