// Chooses the kernels for the machine the library was loaded on.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../sparse/norm_kernels.h"
#include "kernels.h"

namespace bppsa {

#if defined(__x86_64__)
namespace x86_64_v2 {
extern const Kernels table;
extern const NormKernels norm_table;
}  // namespace x86_64_v2
namespace x86_64_v3 {
extern const Kernels table;
extern const NormKernels norm_table;
}  // namespace x86_64_v3
namespace x86_64_v4 {
extern const Kernels table;
extern const NormKernels norm_table;
}  // namespace x86_64_v4

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

int find_level() {
  __builtin_cpu_init();
  const int wanted = wanted_level();
  if (wanted >= 4 && has_v4()) return 4;
  return wanted >= 3 && has_v3() ? 3 : 2;
}

int level() {
  static const int found = find_level();
  return found;
}

template <class Table>
const Table& choose(const Table& v2, const Table& v3, const Table& v4) {
  return level() == 4 ? v4 : level() == 3 ? v3 : v2;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose(x86_64_v2::table, x86_64_v3::table, x86_64_v4::table);
  return chosen;
}

const NormKernels& norm_kernels() {
  static const NormKernels& chosen =
      choose(x86_64_v2::norm_table, x86_64_v3::norm_table, x86_64_v4::norm_table);
  return chosen;
}
#else
namespace generic {
extern const Kernels table;
extern const NormKernels norm_table;
}  // namespace generic

const Kernels& kernels() { return generic::table; }
const NormKernels& norm_kernels() { return generic::norm_table; }
#endif

}  // namespace bppsa
