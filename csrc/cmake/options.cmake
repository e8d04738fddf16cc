# What a build contains. A build for this machine alone compiles one instruction set and leaves out
# CUDA where there is no GPU: minutes instead of half an hour. A wheel, and CI, contain everything,
# unless CI=false.

if(DEFINED ENV{CI} AND NOT "$ENV{CI}" MATCHES "^(|0|false)$")
  set(bppsa_complete "CI is set")
elseif("$ENV{CI}" STREQUAL "false")
  set(bppsa_complete "")
elseif(SKBUILD_STATE MATCHES "wheel|sdist")
  set(bppsa_complete "a wheel is built")
else()
  set(bppsa_complete "")
endif()

# --- instruction sets ------------------------------------------------------------------------------

set(BPPSA_LEVELS native CACHE STRING
    "Instruction sets of the CPU kernels: native (the best that this machine runs), all, or a list")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(bppsa_levels x86-64-v2 x86-64-v3 x86-64-v4)  # in rising order
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(bppsa_levels aarch64)  # NEON, which each of them has
else()
  set(bppsa_levels generic)
endif()

# Leaves the level that cpu/levels/choose.cpp would choose here, by what the compiler finds out.
function(bppsa_native_level)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null
                  OUTPUT_VARIABLE macros COMMAND_ERROR_IS_FATAL ANY)
  set(level x86-64-v2)
  set(v3 AVX2 FMA BMI BMI2 F16C LZCNT MOVBE)
  set(v4 ${v3} AVX512F AVX512BW AVX512CD AVX512DQ AVX512VL)
  foreach(candidate v3 v4)
    set(missing ${${candidate}})
    foreach(feature ${${candidate}})
      if(macros MATCHES "#define __${feature}__ ")
        list(REMOVE_ITEM missing ${feature})
      endif()
    endforeach()
    if(NOT missing)
      set(level x86-64-${candidate})
    endif()
  endforeach()
  set(bppsa_levels ${level} PARENT_SCOPE)
endfunction()

set(why "BPPSA_LEVELS=${BPPSA_LEVELS}")
if(BPPSA_LEVELS STREQUAL "native")
  if(bppsa_complete)
    set(why "${bppsa_complete}")
  elseif(bppsa_levels MATCHES "x86")
    bppsa_native_level()
    set(why "this machine's; -DBPPSA_LEVELS=all for every one")
  endif()
elseif(NOT BPPSA_LEVELS STREQUAL "all")
  set(unknown ${BPPSA_LEVELS})
  list(REMOVE_ITEM unknown ${bppsa_levels})
  if(unknown)
    message(FATAL_ERROR "BPPSA_LEVELS: found '${BPPSA_LEVELS}', wanted native, all, or some of "
                        "${bppsa_levels}")
  endif()
  string(REPLACE ";" "|" wanted "${BPPSA_LEVELS}")
  list(FILTER bppsa_levels INCLUDE REGEX "^(${wanted})$")
endif()
list(JOIN bppsa_levels ", " shown)
message(STATUS "bppsa_lightning: CPU kernels for ${shown} (${why})")

# --- CUDA ------------------------------------------------------------------------------------------

set(BPPSA_CUDA AUTO CACHE STRING
    "Build the CUDA kernels: AUTO (where a GPU is visible, in wheels and in CI), ON or OFF")
set_property(CACHE BPPSA_CUDA PROPERTY STRINGS AUTO ON OFF)

# Sets bppsa_cuda, and bppsa_cuda_why.
string(TOUPPER "${BPPSA_CUDA}" wanted)
set(bppsa_cuda ON)
set(bppsa_cuda_why "BPPSA_CUDA=${BPPSA_CUDA}")
if(wanted STREQUAL "AUTO")
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
  if(bppsa_complete)
    set(bppsa_cuda_why "${bppsa_complete}")
  elseif(no_gpu EQUAL 0 OR EXISTS /dev/nvidia0)
    set(bppsa_cuda_why "a GPU is visible; -DBPPSA_CUDA=OFF to leave them out")
  else()
    set(bppsa_cuda OFF)
    set(bppsa_cuda_why "no GPU is visible; -DBPPSA_CUDA=ON to build them")
  endif()
elseif(NOT BPPSA_CUDA)
  set(bppsa_cuda OFF)
endif()

# --- compiler cache --------------------------------------------------------------------------------

# What one clone has compiled serves another: paths below the root count as relative ones.
find_program(BPPSA_CCACHE ccache)
if(BPPSA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR PARENT_PATH root)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${root} ${BPPSA_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  message(STATUS "bppsa_lightning: compiling by way of ${BPPSA_CCACHE}")
endif()
