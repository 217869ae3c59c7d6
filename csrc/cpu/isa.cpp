#include "isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace pyengine {
namespace {

struct Isa {
  const char* name;
  const Kernels* kernels;
};

Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
    return {"avx512", &kKernelsAvx512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"avx2", &kKernelsAvx2};
  }
#endif
  return {"portable", &kKernelsPortable};
}

// Asking for less than the processor has is for tests; asking for more would be SIGILL.
Isa choose_isa() {
  const Isa best = best_isa();
  const char* wanted = std::getenv("PYENGINE_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  const std::string name = wanted;
  if (name == "portable") return {"portable", &kKernelsPortable};
#if defined(__x86_64__)
  if (name == "avx2" && best.kernels != &kKernelsPortable) return {"avx2", &kKernelsAvx2};
#endif
  if (name == best.name) return best;
  throw std::runtime_error("PYENGINE_ISA=" + name + " is not available: expected portable, avx2 " +
                           "or avx512, and this processor's best is " + best.name);
}

const Isa& isa() {
  static const Isa chosen = choose_isa();
  return chosen;
}

}  // namespace

const Kernels& kernels() { return *isa().kernels; }

std::string isa_name() { return isa().name; }

}  // namespace pyengine
