# How every folder declares itself: one static library per folder, unit tests beside the source.

add_library(netsum_flags INTERFACE)
target_compile_options(netsum_flags INTERFACE
  -Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> -Wno-missing-field-initializers
  # The same sum must come out on every host, so no fused multiply-add behind our back.
  -ffp-contract=off -fno-math-errno)
if(NETSUM_SANITIZE)
  target_compile_options(netsum_flags INTERFACE -fsanitize=${NETSUM_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(netsum_flags INTERFACE -fsanitize=${NETSUM_SANITIZE})
endif()

# netsum_compile_together(<variable> <name> <source>...): sets the variable to the sources to compile, which include up to eight of
# those given each: headers are then read, and templates instantiated, once, which takes half the processor time. The names in
# the namespace { } of sources of one folder must differ. Debug builds compile each source alone, and so do C, generated
# sources and those with compile definitions of their own.
function(netsum_compile_together variable name)
  set(alone ${ARGN})
  set(together ${ARGN})
  list(FILTER together INCLUDE REGEX "^[^/$].*\\.cc$")
  foreach(source ${together})
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(definitions)
      list(REMOVE_ITEM together ${source})
    endif()
  endforeach()
  list(LENGTH together count)
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug" AND count GREATER 1)
    list(REMOVE_ITEM alone ${together})
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    # From the root, not absolute: ccache then has the object for every checkout.
    list(TRANSFORM together REPLACE "(.+)" "#include \"${folder}/\\1\"")
    math(EXPR units "(${count} + 7) / 8")
    foreach(unit RANGE 1 ${units})
      math(EXPR begin "${count} * (${unit} - 1) / ${units}")
      math(EXPR length "${count} * ${unit} / ${units} - ${begin}")
      list(SUBLIST together ${begin} ${length} text)
      list(JOIN text "\n" text)
      file(CONFIGURE OUTPUT ${name}_${unit}.cc CONTENT "${text}\n" @ONLY)
      list(APPEND alone ${CMAKE_CURRENT_BINARY_DIR}/${name}_${unit}.cc)
    endforeach()
  endif()
  set(${variable} ${alone} PARENT_SCOPE)
endfunction()

# netsum_library(<name> SOURCES ... DEPS ... [PRIVATE_DEPS ...] [APART])
# APART: each source is compiled alone.
# Includes are written from the repository root ("src/net/packet_io.h") or as <netsum/status.h>.
function(netsum_library name)
  cmake_parse_arguments(ARG "APART" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SOURCES)
    if(NOT ARG_APART)
      netsum_compile_together(ARG_SOURCES ${name} ${ARG_SOURCES})
    endif()
    add_library(${name} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(${name} PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${name} ${scope} ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} ${scope} netsum_flags ${ARG_DEPS})
endfunction()

# netsum_protobuf(<name> file.proto [GRPC]): the generated code of a .proto of this folder, by the C++ plugins.
function(netsum_protobuf name file)
  find_program(NETSUM_PROTOC protoc REQUIRED)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(generated ${PROJECT_BINARY_DIR}/generated)
  cmake_path(REMOVE_EXTENSION file OUTPUT_VARIABLE stem)
  set(stem ${generated}/${folder}/${stem})
  set(sources ${stem}.pb.cc)
  set(outputs ${stem}.pb.cc ${stem}.pb.h)
  set(plugins --cpp_out=${generated})
  if("GRPC" IN_LIST ARGN)
    find_program(NETSUM_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
    list(APPEND sources ${stem}.grpc.pb.cc)
    list(APPEND outputs ${stem}.grpc.pb.cc ${stem}.grpc.pb.h)
    list(APPEND plugins --grpc_out=${generated} --plugin=protoc-gen-grpc=${NETSUM_GRPC_CPP_PLUGIN})
  endif()
  file(MAKE_DIRECTORY ${generated})
  set(proto ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  add_custom_command(
    OUTPUT ${outputs} COMMAND ${NETSUM_PROTOC} -I ${PROJECT_SOURCE_DIR} ${plugins} ${proto}
    DEPENDS ${proto} COMMENT "Generating ${folder}/${file}" VERBATIM)
  # Generated code: our warnings are not for it, the sanitizers are.
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} SYSTEM PUBLIC ${generated})
  # gRPC's headers otherwise expect the full runtime, with descriptors (see job.proto).
  target_compile_definitions(${name} PUBLIC GRPC_USE_PROTO_LITE)
  if(NETSUM_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${NETSUM_SANITIZE} -fno-omit-frame-pointer)
  endif()
endfunction()

# netsum_off_hot_path(<target>...): quick to build rather than quick to run.
function(netsum_off_hot_path)
  foreach(name ${ARGN})
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  endforeach()
endfunction()

# netsum_link_quickly(<program>): by mold or gold, which take a third to two thirds of the time of GNU ld.
find_program(NETSUM_MOLD ld.mold)
find_program(NETSUM_GOLD ld.gold)
function(netsum_link_quickly name)
  if(NETSUM_MOLD AND NOT NETSUM_SANITIZE)
    target_link_options(${name} PRIVATE -fuse-ld=mold)
  elseif(NETSUM_GOLD)
    target_link_options(${name} PRIVATE -fuse-ld=gold)
  endif()
endfunction()

# ccache hashes the source together with the precompiled header.
set(netsum_precompile_flags $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
# netsum_precompile(<target> <header>...): headers of other projects that most sources of the target include.
function(netsum_precompile name)
  target_precompile_headers(${name} PRIVATE ${ARGN})
  target_compile_options(${name} PRIVATE ${netsum_precompile_flags})
  # Two compilations of one precompiled header differ, and with it ccache's hash of every source that includes it: a fresh
  # clone would find none of its objects. With CCACHE_PCH_EXTSUM, ccache hashes this file instead: a sum of the headers' text.
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${name}.dir)
  list(TRANSFORM ARGN PREPEND "#include ")
  list(JOIN ARGN "\n" text)
  file(CONFIGURE OUTPUT ${folder}/headers.h CONTENT "${text}\n" @ONLY)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -std=c++${CMAKE_CXX_STANDARD} -E -P -dD -x c++ ${folder}/headers.h
    OUTPUT_VARIABLE text RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)  # then the precompiled header itself is hashed
    file(REMOVE ${folder}/cmake_pch.hxx.gch.sum)
  else()
    string(SHA256 sum "${text}")
    file(CONFIGURE OUTPUT ${folder}/cmake_pch.hxx.gch.sum CONTENT "${sum}\n" @ONLY)
  endif()
endfunction()

# Tests are not optimised, which takes a third of their build time: they call optimised code. They share one precompiled
# header of GoogleTest, which is compiled as executables are.
if(NETSUM_BUILD_TESTS)
  file(CONFIGURE OUTPUT netsum_test_headers.cc CONTENT "")
  add_library(netsum_test_headers OBJECT ${CMAKE_CURRENT_BINARY_DIR}/netsum_test_headers.cc)
  target_link_libraries(netsum_test_headers PRIVATE netsum_flags GTest::gmock)
  set_target_properties(netsum_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(netsum_test_headers PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0> -fPIE -pthread)
  netsum_precompile(netsum_test_headers <gmock/gmock.h> <gtest/gtest.h> <algorithm> <chrono> <functional> <map> <memory>
    <optional> <string> <thread> <vector>)
  add_library(netsum_test_main STATIC ${PROJECT_SOURCE_DIR}/tests/main.cc ${PROJECT_SOURCE_DIR}/tests/source_folder.cc)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/source_folder.cc PROPERTIES
    COMPILE_DEFINITIONS NETSUM_SOURCE_FOLDER="${PROJECT_SOURCE_DIR}")
  target_include_directories(netsum_test_main PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(netsum_test_main PRIVATE netsum_flags PUBLIC GTest::gmock)
endif()

# At the end of a folder, when a binary's tests are known.
function(netsum_compile_tests_together binary)
  get_target_property(sources ${binary} NETSUM_SOURCES)
  list(REMOVE_DUPLICATES sources)
  netsum_compile_together(sources ${binary} ${sources})
  target_sources(${binary} PRIVATE ${sources})
  target_include_directories(${binary} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

# netsum_test(<name> SOURCES ... DEPS ... [DEFINITIONS ...] [BINARY name | ALONE] [LABELS ...] [TIMEOUT seconds] [BUSY] [SOAK]):
# GoogleTest sources that ctest runs as the test <name>, in a process of their own. The tests of a folder are linked into one
# binary, <folder>_tests (src_ and tests_ left out), since links take longer than compilations; a test runs the binary with
# the paths of its *_test.cc (tests/main.cc). BINARY is for tests that cannot be linked with the folder's other tests, or that
# are compiled in another way (BUSY).
# ALONE is a binary without other tests, of the test's name: for a test that replaces main() or operator new, or that defines
# what another test defines.
# ctest runs six tests at a time, because most of them wait. One that keeps a core BUSY counts as three, and is optimised.
# With SOAK it is also the test <name>.soak, which `make soak` runs: the same binary, with NETSUM_SOAK=1 (src/base/soak.h).
function(netsum_test name)
  if(NOT NETSUM_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "SOAK;BUSY;ALONE" "TIMEOUT;BINARY" "SOURCES;DEPS;DEFINITIONS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)  # several times what the longest takes beside the others
  endif()
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(chosen "")
  if(ARG_ALONE)
    set(ARG_BINARY ${name})
  else()
    if(NOT ARG_BINARY)
      string(REGEX REPLACE "^(src|tests)/" "" ARG_BINARY ${folder}_tests)
      string(REPLACE "/" "_" ARG_BINARY ${ARG_BINARY})
    endif()
    set(chosen ${ARG_SOURCES})
    list(FILTER chosen INCLUDE REGEX "_test\\.cc$")
    list(TRANSFORM chosen PREPEND ${folder}/)
  endif()
  if(NOT TARGET ${ARG_BINARY})
    add_executable(${ARG_BINARY})
    target_link_libraries(${ARG_BINARY} PRIVATE netsum_flags GTest::gmock netsum_test_main)
    netsum_link_quickly(${ARG_BINARY})
    # Of GoogleTest's macros: in a unit of several sources, or from a precompiled header, they are not of a system header.
    target_compile_options(${ARG_BINARY} PRIVATE -Wno-dangling-else)
    if(ARG_BUSY)
      target_compile_options(${ARG_BINARY} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
    else()
      target_compile_options(${ARG_BINARY} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0> -pthread ${netsum_precompile_flags})
      target_precompile_headers(${ARG_BINARY} REUSE_FROM netsum_test_headers)
    endif()
    set_target_properties(${ARG_BINARY} PROPERTIES NETSUM_BUSY ${ARG_BUSY})
    cmake_language(EVAL CODE "cmake_language(DEFER CALL netsum_compile_tests_together ${ARG_BINARY})")
  endif()
  get_target_property(busy ${ARG_BINARY} NETSUM_BUSY)
  if(NOT busy STREQUAL ARG_BUSY)
    message(FATAL_ERROR "${name}: of the tests of ${ARG_BINARY} only some are BUSY; give them a BINARY of their own")
  endif()
  set_property(TARGET ${ARG_BINARY} APPEND PROPERTY NETSUM_SOURCES ${ARG_SOURCES})
  target_link_libraries(${ARG_BINARY} PRIVATE ${ARG_DEPS})
  set_property(SOURCE ${ARG_SOURCES} APPEND PROPERTY COMPILE_DEFINITIONS ${ARG_DEFINITIONS})
  netsum_gtest(${name} ${ARG_BINARY} ${chosen})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "gtest;${ARG_LABELS}")
  if(ARG_BUSY)
    set_tests_properties(${name} PROPERTIES PROCESSORS 3)
  endif()
  if(ARG_SOAK)
    netsum_gtest(${name}.soak ${ARG_BINARY} ${chosen})
    set_tests_properties(${name}.soak PROPERTIES TIMEOUT 3600 LABELS "gtest;soak" ENVIRONMENT NETSUM_SOAK=1)
  endif()
endfunction()

# netsum_add_test(<name> <target or program> <argument>...): a test whose processor seconds `make test` counts.
function(netsum_add_test name program)
  if(TARGET ${program})
    set(program $<TARGET_FILE:${program}>)
  endif()
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/scripts/cpu_seconds.sh
           ${PROJECT_BINARY_DIR}/test-results/cpu/${name} ${program} ${ARGN})
endfunction()

# The label gtest tells scripts/summarize_tests.py that a test writes gtest/<test>.xml, where its cases are counted.
function(netsum_gtest test binary)
  netsum_add_test(${test} ${binary} ${ARGN})
  set_tests_properties(${test} PROPERTIES
    ENVIRONMENT_MODIFICATION "GTEST_OUTPUT=set:xml:${PROJECT_BINARY_DIR}/test-results/gtest/${test}.xml")
endfunction()
