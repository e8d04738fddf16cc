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

# The level that cpu/levels/choose.cpp would choose here, by what the compiler finds out itself.
function(bppsa_native_level result)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null
                  OUTPUT_VARIABLE macros COMMAND_ERROR_IS_FATAL ANY)
  set(level x86-64-v2)
  set(v3 AVX2 FMA BMI BMI2 F16C LZCNT MOVBE)
  set(v4 AVX512F AVX512BW AVX512CD AVX512DQ AVX512VL)
  foreach(candidate v3 v4)
    foreach(feature ${${candidate}})
      if(NOT macros MATCHES "#define __${feature}__ ")
        set(${result} ${level} PARENT_SCOPE)
        return()
      endif()
    endforeach()
    set(level x86-64-${candidate})
  endforeach()
  set(${result} ${level} PARENT_SCOPE)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(bppsa_all_levels x86-64-v2 x86-64-v3 x86-64-v4)
else()
  set(bppsa_all_levels generic)
endif()
if(BPPSA_LEVELS STREQUAL "all")
  set(bppsa_levels ${bppsa_all_levels})
  set(why "BPPSA_LEVELS=all")
elseif(NOT BPPSA_LEVELS STREQUAL "native")
  string(REPLACE ";" "|" wanted "${BPPSA_LEVELS}")
  set(bppsa_levels ${bppsa_all_levels})  # in rising order, whatever the list's
  list(FILTER bppsa_levels INCLUDE REGEX "^(${wanted})$")
  list(LENGTH bppsa_levels found)
  list(LENGTH BPPSA_LEVELS given)
  if(NOT found EQUAL given)
    message(FATAL_ERROR "BPPSA_LEVELS: found '${BPPSA_LEVELS}', wanted native, all, or some of "
                        "${bppsa_all_levels}")
  endif()
  set(why "BPPSA_LEVELS")
elseif(bppsa_complete)
  set(bppsa_levels ${bppsa_all_levels})
  set(why "${bppsa_complete}")
elseif(bppsa_all_levels STREQUAL "generic")
  set(bppsa_levels generic)
  set(why "the only one here")
else()
  bppsa_native_level(bppsa_levels)
  set(why "this machine's; -DBPPSA_LEVELS=all for every one")
endif()
list(JOIN bppsa_levels ", " shown)
message(STATUS "bppsa_lightning: CPU kernels for ${shown} (${why})")

# --- CUDA ------------------------------------------------------------------------------------------

set(BPPSA_CUDA AUTO CACHE STRING
    "Build the CUDA kernels: AUTO (where a GPU is visible, in wheels and in CI), ON or OFF")
set_property(CACHE BPPSA_CUDA PROPERTY STRINGS AUTO ON OFF)

# Sets bppsa_cuda, and bppsa_cuda_why.
string(TOUPPER "${BPPSA_CUDA}" wanted)
set(bppsa_cuda OFF)
if(wanted STREQUAL "AUTO")
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
  if(bppsa_complete)
    set(bppsa_cuda ON)
    set(bppsa_cuda_why "${bppsa_complete}")
  elseif(no_gpu EQUAL 0 OR EXISTS /dev/nvidia0)
    set(bppsa_cuda ON)
    set(bppsa_cuda_why "a GPU is visible; -DBPPSA_CUDA=OFF to leave them out")
  else()
    set(bppsa_cuda_why "no GPU is visible; -DBPPSA_CUDA=ON to build them")
  endif()
else()
  set(bppsa_cuda_why "BPPSA_CUDA=${BPPSA_CUDA}")
  if(BPPSA_CUDA)
    set(bppsa_cuda ON)
  endif()
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
