# Where the library can be built, said before anything is looked for.

if(NOT CMAKE_HOST_LINUX)
  message(FATAL_ERROR
          "bppsa_lightning: found ${CMAKE_HOST_SYSTEM_NAME}, wanted Linux (x86-64 or aarch64). It does "
          "not build on macOS or Windows: use a Linux machine, a container, or WSL 2. "
          "See docs/installation.md#platforms")
endif()

# After project(): the kernels use vectors as GCC has them (__builtin_shuffle), and C++20.
function(bppsa_check_compiler)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
    message(FATAL_ERROR
            "bppsa_lightning: found ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, wanted GCC 11 "
            "or newer: set CXX=g++. See docs/installation.md#errors")
  endif()
endfunction()
