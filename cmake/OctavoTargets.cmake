# Functions that every folder uses: warnings and sanitizers in one place, one line for a test.

# -ffp-contract=off: a*b+c is fused only where the source says so, so that every compiler and tier gives the same bits.
add_library(octavo_options INTERFACE)
set(flags -Wall -Wextra -Wpedantic -Wconversion -Wshadow -ffp-contract=off)
if(OCTAVO_WERROR)
  list(APPEND flags -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND flags -Wno-restrict) # GCC 12 warns about its own std::string ("" + text)
endif()
if(OCTAVO_SANITIZE)
  list(APPEND flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(octavo_options INTERFACE -fsanitize=address,undefined)
endif()
if(OCTAVO_FUZZ)
  list(APPEND flags -fsanitize=fuzzer-no-link)
endif()
target_compile_options(octavo_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${flags}>")
if(OCTAVO_HAS_CUDA)
  # Without -Wpedantic and -Wconversion: the host code that nvcc makes of kernels has line markers and casts of its own.
  set(flags -O3 --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
  if(OCTAVO_WERROR)
    list(APPEND flags -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  target_compile_options(octavo_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${flags}>")
endif()

# octavo_test(name source...): a GoogleTest program that sees the library's inner headers too.
function(octavo_test name)
  if(NOT OCTAVO_TESTS)
    return()
  endif()
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE octavo_inner octavo_options GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE OCTAVO_SOURCE_DIR="${PROJECT_SOURCE_DIR}" OCTAVO_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name})
endfunction()

# octavo_fuzz(name source...): a libFuzzer program, in the fuzz preset only.
function(octavo_fuzz name)
  if(NOT OCTAVO_FUZZ)
    return()
  endif()
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE octavo_inner octavo_options)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()

# Instruction sets of the CPU tiers, for the one file of each tier and its test.
set(OCTAVO_AVX2 -mavx2 -mfma -mf16c)
set(OCTAVO_AVX512 ${OCTAVO_AVX2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512vnni
  $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>) # GCC 12 warns about its own avx512fintrin.h
