"""Scratch memory: large pieces stay with their thread, to a limit."""

import subprocess

import pytest
from support.native_build import ROOT, tool

PROGRAM = r"""
#include <cassert>
#include <cstring>
#include <thread>
#include <vector>

#include "buffer.h"

using namespace bppsa::BPPSA_ISA;
using F = Buffer<float>;

constexpr int64_t kLarge = 1 << 18;  // numbers: 1 MiB

void* place(int64_t n) {
  F buffer(n);
  std::memset(buffer.data, 1, n * sizeof(float));
  assert(reinterpret_cast<std::uintptr_t>(buffer.data) % 64 == 0);
  return buffer.data;
}

int main() {
  void* const first = place(kLarge);
  assert(place(kLarge) == first);                // the same piece again
  assert(place(kLarge * 2 / 3) == first);        // also for somewhat less,
  assert(place(kLarge / 4) != first);            // but not for much less,
  assert(place(kLarge * 2) != first);            // and not for more
  assert(place(kLarge) == first);

  {  // in use, it is nobody else's
    F one(kLarge), other(kLarge);
    assert(one.data != other.data);
  }

  void* elsewhere = nullptr;
  std::thread([&] { elsewhere = place(kLarge); assert(place(kLarge) == elsewhere); }).join();
  assert(elsewhere != first);

  // Those used longest ago go where too much is held, or too many: so this never grows.
  for (int64_t n = 1; n < 60; ++n) place(kLarge / 4 + n * (kLarge / 8));
  for (int i = 0; i < 100; ++i) {
    std::vector<F*> live;
    for (int64_t n = 0; n < 40; ++n) live.push_back(new F(kLarge + n));
    for (F* one : live) delete one;
  }
  place(int64_t(9) << 20);  // larger than what is ever kept

  place(0), place(1);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-fsanitize=thread",)], ids=["plain", "thread sanitizer"])
def test_pieces(tmp_path, flags):
    source, program = tmp_path / "pieces.cpp", tmp_path / "pieces"
    source.write_text(PROGRAM)
    include = f"-I{ROOT / 'csrc' / 'simd'}"
    command = [tool("g++"), "-std=c++20", "-g", "-O1", "-Wall", "-Werror", "-DBPPSA_ISA=plain"]
    command += [*flags, include, str(source), "-o", str(program), "-pthread"]
    subprocess.run(command, check=True)
    if flags:  # which replaces the allocator, and may refuse this machine's addresses
        subprocess.run([tool("setarch"), "-R", str(program)], check=True)
        return
    subprocess.run(["bash", "-c", 'ulimit -d 110000; exec "$0"', str(program)], check=True)


def test_a_sanitizer_sees_each_piece(tmp_path):
    """What lies beyond a buffer is found, as none is used again."""
    source, program = tmp_path / "beyond.cpp", tmp_path / "beyond"
    source.write_text(
        '#include "buffer.h"\n'
        "using namespace bppsa::BPPSA_ISA;\n"
        "int main() {\n"
        "  { Buffer<float> large(1 << 20); large.data[0] = 1; }\n"
        "  Buffer<float> smaller(3 << 18);\n"
        "  volatile float* data = smaller.data;\n"
        "  data[(3 << 18) + 32] = 1;\n"
        "}\n"
    )
    command = [tool("g++"), "-std=c++20", "-DBPPSA_ISA=plain", "-fsanitize=address"]
    command += [f"-I{ROOT / 'csrc' / 'simd'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    ran = subprocess.run([str(program)], capture_output=True, text=True)
    assert ran.returncode != 0 and "heap-buffer-overflow" in ran.stderr
