// One check per operator, called by every backend before its kernel, so that all of them refuse
// the same inputs in the same words: the argument's name, what was expected, what came.
#pragma once

#include "op_checks/attention.h"
#include "op_checks/decoder.h"
#include "op_checks/ggml.h"
#include "op_checks/linear_layers.h"
#include "op_checks/quantized.h"
#include "op_checks/rowwise.h"
#include "op_checks/sampling.h"
