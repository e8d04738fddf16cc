// Chooses the kernels for the machine the library was loaded on.
#include <cstdio>
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
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("movbe");
}

bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// BPPSA_CPU_CAPABILITY (x86-64-v2, x86_64_v3, v4, …) can lower the level, to test one or to
// compare; it never raises it.
int wanted_level() {
  const char* wanted = std::getenv("BPPSA_CPU_CAPABILITY");
  if (!wanted) return 4;
  const size_t n = std::strlen(wanted);
  const char level = n >= 2 && wanted[n - 2] == 'v' ? wanted[n - 1] : '\0';
  if (level >= '2' && level <= '4') return level - '0';
  std::fprintf(stderr,
               "bppsa_lightning: BPPSA_CPU_CAPABILITY: found '%s', wanted x86-64-v2, x86-64-v3 or "
               "x86-64-v4; ignored\n",
               wanted);
  return 4;
}

const Kernels& choose() {
  __builtin_cpu_init();
  const int wanted = wanted_level();
  if (wanted >= 4 && has_v4()) return x86_64_v4::table;
  if (wanted >= 3 && has_v3()) return x86_64_v3::table;
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
