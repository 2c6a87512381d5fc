# Target helpers and the one place of compiler flags.
#
#   sft_library(NAME SOURCES a.cc b.cc [DEPS t...] [PCH p])   static library of our code
#   sft_binary(NAME SOURCES main.cc [DEPS t...] [PCH p] [TEST])   executable in <build>/bin
#   sft_test(NAME SOURCES a_test.cc... [DEPS t...] [PCH p] [OPTIMIZED] [LABELS unit|e2e|parity|...] [TIMEOUT s]
#     [BY_SUITE])   BY_SUITE: one ctest entry a suite, not a case
#   sft_precompiled(NAME HEADERS <h>... [DEPS t...] [TEST])   what PCH names; TEST: for what is built as tests are
#
# Precompiled headers, and six files of a target compiled as one (SFT_UNITY), are for speed alone: most of a
# file's time goes into templates of headers that its neighbours need too. Every file includes what it uses, and
# the preset `alone` builds without either. Names in unnamed namespaces are unique in their target.
#
# Every one of our targets gets the warnings below as errors; third-party headers are SYSTEM.
include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_UNITY_BUILD ${SFT_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 6)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Line tables are what a backtrace needs; full debug information doubles the build time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# GCC collects its garbage for a tenth of its time unless it may keep half a gigabyte.
add_compile_options($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:--param=ggc-min-heapsize=524288>)

find_program(SFT_CCACHE ccache)
if(SFT_CCACHE)
  set(launcher ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${SFT_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

# A quarter of the time of GNU's linker; GCC knows it from 12.1 on. Binaries are a third smaller with debug
# sections packed, by zlib, which Debian 12's addr2line reads.
find_program(SFT_MOLD mold)
if(SFT_MOLD AND NOT (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12.1))
  add_link_options(-fuse-ld=mold -Wl,--compress-debug-sections=zlib)
endif()

add_library(sft_warnings INTERFACE)
target_compile_options(sft_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wthread-safety -Wthread-safety-beta>)
add_library(sft_sanitize INTERFACE)
if(SFT_SANITIZE)
  target_compile_options(sft_sanitize INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(sft_sanitize INTERFACE -fsanitize=address,undefined)
endif()

if(SFT_FUZZ)
  target_compile_options(sft_sanitize INTERFACE -fsanitize=fuzzer-no-link)
endif()

function(_sft_common name)
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE sft_warnings sft_sanitize)
endfunction()

# Tests are built to be built fast: they wait for what they test.
set(sft_test_options $<$<CONFIG:RelWithDebInfo>:-O0>)

# For code that waits for networks, disks, devices and people: a quarter less time to compile than -O2.
set(sft_waiting_options $<$<CONFIG:RelWithDebInfo>:-O1>)

# Without -fpch-preprocess ccache would not see through the header.
function(_sft_use_precompiled name pch)
  if(pch)
    target_compile_options(${name} PRIVATE -fpch-preprocess)
    target_precompile_headers(${name} REUSE_FROM ${pch})
  endif()
endfunction()

function(sft_precompiled name)
  cmake_parse_arguments(a "TEST" "" "HEADERS;DEPS" ${ARGN})
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/${name}.cc" CONTENT "// Owns a precompiled header.\n")
  add_library(${name} OBJECT "${CMAKE_CURRENT_BINARY_DIR}/${name}.cc")
  target_link_libraries(${name} PRIVATE ${a_DEPS})
  _sft_common(${name})
  target_compile_options(${name} PRIVATE -fpch-preprocess)
  if(a_TEST)  # used by executables
    target_compile_options(${name} PRIVATE ${sft_test_options} -fPIE)
  endif()
  target_precompile_headers(${name} PRIVATE ${a_HEADERS})
endfunction()

function(sft_library name)
  cmake_parse_arguments(a "" "PCH" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${a_SOURCES})
  target_link_libraries(${name} PUBLIC ${a_DEPS})
  _sft_common(${name})
  _sft_use_precompiled(${name} "${a_PCH}")
endfunction()

function(sft_binary name)
  cmake_parse_arguments(a "TEST" "PCH" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${a_SOURCES})
  target_link_libraries(${name} PRIVATE ${a_DEPS})
  _sft_common(${name})
  if(a_TEST)
    target_compile_options(${name} PRIVATE ${sft_test_options})
  endif()
  _sft_use_precompiled(${name} "${a_PCH}")
endfunction()

# A process that loads LibTorch takes most of a second to begin, more than most of its cases.
function(_sft_add_suites name sources)
  set(suites "")
  foreach(source IN LISTS sources)
    file(STRINGS ${source} lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    list(TRANSFORM lines REPLACE "^[A-Z_]+\\(([A-Za-z0-9]+),.*" "\\1")
    list(APPEND suites ${lines})
  endforeach()
  list(REMOVE_DUPLICATES suites)
  foreach(suite IN LISTS suites)
    add_test(NAME ${suite} COMMAND ${name} "--gtest_filter=${suite}.*:*/${suite}.*:${suite}/*.*")
    set_tests_properties(${suite} PROPERTIES ${ARGN})
  endforeach()
endfunction()

function(sft_test name)
  cmake_parse_arguments(a "OPTIMIZED;BY_SUITE" "TIMEOUT;PCH" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT a_LABELS)
    set(a_LABELS unit)
  endif()
  # Catches what hangs, on a busy machine too: no test takes a tenth of it on an idle one.
  if(NOT a_TIMEOUT)
    set(a_TIMEOUT 900)
  endif()
  if(SFT_SANITIZE)
    math(EXPR a_TIMEOUT "5 * ${a_TIMEOUT}")  # unoptimised and checked
  endif()
  add_executable(${name} ${a_SOURCES})
  target_link_libraries(${name} PRIVATE ${a_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SFT_SOURCE_DIR="${CMAKE_SOURCE_DIR}" SFT_BINARY_DIR="${CMAKE_BINARY_DIR}")
  _sft_common(${name})
  if(NOT a_OPTIMIZED)
    target_compile_options(${name} PRIVATE ${sft_test_options})
    _sft_use_precompiled(${name} "${a_PCH}")
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  set(processors 1)
  if(a_LABELS STREQUAL parity)
    set(processors 2)  # trains all the time; most others wait for something
  endif()
  # OpenMP's idle threads spin: with more processes than cores that multiplies run times.
  set(properties LABELS "${a_LABELS}" TIMEOUT ${a_TIMEOUT} PROCESSORS ${processors} ENVIRONMENT GOMP_SPINCOUNT=1000)
  if(a_BY_SUITE)
    _sft_add_suites(${name} "${a_SOURCES}" ${properties})
  else()
    gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 600 PROPERTIES ${properties})
  endif()
endfunction()
