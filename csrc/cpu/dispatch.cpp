// Chooses the kernels for the machine the library was loaded on.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace bppsa {

#if defined(__x86_64__)
namespace x86_64_v2 {
extern const Kernels table;
}
namespace x86_64_v3 {
extern const Kernels table;
}
namespace x86_64_v4 {
extern const Kernels table;
}

namespace {

bool has_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// BPPSA_CPU_CAPABILITY can lower the level (to test one, or to compare), never raise it.
const Kernels& choose() {
  __builtin_cpu_init();
  const char* wanted = std::getenv("BPPSA_CPU_CAPABILITY");
  const auto allows = [&](const char* level, const char* above) {
    return !wanted || !std::strcmp(wanted, level) || (above && !std::strcmp(wanted, above));
  };
  if (has_v4() && allows("x86-64-v4", nullptr)) return x86_64_v4::table;
  if (has_v3() && allows("x86-64-v3", "x86-64-v4")) return x86_64_v3::table;
  return x86_64_v2::table;
}

}  // namespace
#else
namespace generic {
extern const Kernels table;
}
namespace {
const Kernels& choose() { return generic::table; }
}  // namespace
#endif

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace bppsa
