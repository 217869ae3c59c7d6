// The state of a thread that decides how floats are rounded.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace pyengine {

// As long as this lives, its thread rounds to nearest even and keeps denormal numbers: the state
// that threads start with. A process may have left it, by torch.set_flush_denormal or by loading a
// library built with -ffast-math, for some of its threads or for all; results must not tell.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

#if defined(__SSE2__)
  DefaultFloatEnvironment() { _mm_setcsr(kDefault); }
  ~DefaultFloatEnvironment() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, no other bit set
  const unsigned before_ = _mm_getcsr();
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
#endif
};

}  // namespace pyengine
