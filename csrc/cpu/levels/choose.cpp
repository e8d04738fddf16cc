// Chooses the kernels for the machine the library was loaded on.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "table.h"

namespace bppsa {

// BPPSA_LEVELS: LEVEL(name) for each level that was built, rising (CMakeLists.txt).
#define LEVEL(name)           \
  namespace name {            \
  extern const Kernels table; \
  }
BPPSA_LEVELS
#undef LEVEL

namespace {

#define LEVEL(name) &name::table,
const Kernels* const levels[] = {BPPSA_LEVELS};
#undef LEVEL

// 2, 3 or 4, of a name that ends in v2, v3 or v4; 0 of others.
int number_in(const char* name) {
  const size_t n = std::strlen(name);
  const char number = n >= 2 && name[n - 2] == 'v' ? name[n - 1] : '0';
  return '2' <= number && number <= '4' ? number - '0' : 0;
}

#if defined(__x86_64__)
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

// What the machine runs. v2 is not asked for: torch itself needs it.
int number_here() {
  __builtin_cpu_init();
  return has_v4() ? 4 : has_v3() ? 3 : 2;
}
#else
int number_here() { return 0; }
#endif

// BPPSA_CPU_CAPABILITY (x86-64-v2, x86_64_v3, v4, …) can lower the level, to test one or to
// compare; it never raises it.
int wanted_number() {
  const char* wanted = std::getenv("BPPSA_CPU_CAPABILITY");
  if (!wanted) return 4;
  const int number = number_in(wanted);
  if (!number) {
    std::fprintf(stderr,
                 "bppsa_lightning: BPPSA_CPU_CAPABILITY: found '%s', wanted x86-64-v2, x86-64-v3 "
                 "or x86-64-v4; ignored\n",
                 wanted);
    return 4;
  }
  if (number < number_in(levels[0]->level))
    std::fprintf(stderr,
                 "bppsa_lightning: BPPSA_CPU_CAPABILITY: found '%s', but the lowest level of this "
                 "build is %s, which is taken; build with -DBPPSA_LEVELS=all for every level\n",
                 wanted, levels[0]->level);
  return number;
}

const Kernels& choose() {
  const int here = number_here(), wanted = wanted_number();
  if (number_in(levels[0]->level) > here)
    throw std::runtime_error(std::string("bppsa_lightning was built for ") + levels[0]->level +
                             ", which this machine does not run: build it here, or anywhere with "
                             "-DBPPSA_LEVELS=all");
  const Kernels* chosen = levels[0];
  for (const Kernels* table : levels)
    if (number_in(table->level) <= std::min(here, wanted)) chosen = table;
  return *chosen;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace bppsa
