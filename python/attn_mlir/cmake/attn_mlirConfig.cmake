# Static libraries of attentions that are written in Python, in CMake projects: find_package(attn_mlir) defines
#
#   attn_add_kernel_library(<target> SPEC <file.py>[:<name>] TARGET <cpu|cuda:90a|hip:gfx90a>
#                           [NAME <prefix>] [INPUTS <name>] [DTYPE f32|f16|bf16|f64] [DIM <n>] [VALUE_DIM <n>]
#                           [WRT <name>...] [NO_BACKWARD] [DETERMINISTIC])
#
# SPEC: the file, and the name that the attention has in it, "attention" where none is given. INPUTS: the InputSpec or LinearSpec in the
# file that tells dtype and columns, in place of DTYPE, DIM and VALUE_DIM. NAME: what the C functions begin with, and the header's name;
# that of the target where none is given. What is linked against the target finds `#include "<name>.h"`. The library is made when it is
# built, and again when the file, a module in its folder, or attn-mlir changes.
#
# The Python that has attn-mlir's requirements: -DATTN_MLIR_PYTHON=..., else the one that CMake finds. The folder of this file, for
# -Dattn_mlir_DIR=...: `attn-ahead --cmake`.
cmake_minimum_required(VERSION 3.25)

get_filename_component(ATTN_MLIR_PACKAGES "${CMAKE_CURRENT_LIST_DIR}/../.." REALPATH)

function(attn_add_kernel_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_BACKWARD;DETERMINISTIC" "SPEC;TARGET;NAME;INPUTS;DTYPE;DIM;VALUE_DIM" "WRT")
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "attn_add_kernel_library(${target}): what is '${arg_UNPARSED_ARGUMENTS}${arg_KEYWORDS_MISSING_VALUES}'?")
  endif()
  if(NOT arg_SPEC MATCHES "^(.+\\.py)(:([A-Za-z_][A-Za-z0-9_]*))?$")
    message(FATAL_ERROR "attn_add_kernel_library(${target}): SPEC is a Python file, and the attention's name in it, such as model.py:attention; got '${arg_SPEC}'")
  endif()
  set(file "${CMAKE_MATCH_1}")
  set(attention "${CMAKE_MATCH_3}")
  if(NOT attention)
    set(attention attention)
  endif()
  get_filename_component(file "${file}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "attn_add_kernel_library(${target}): there is no file ${file}")
  endif()
  if(NOT arg_TARGET MATCHES "^(cpu|cuda:[0-9]+a?|hip:gfx[0-9a-f]+)$")
    message(FATAL_ERROR "attn_add_kernel_library(${target}): TARGET is cpu, cuda:90a or hip:gfx90a; got '${arg_TARGET}'")
  endif()
  if(NOT CMAKE_CXX_COMPILER)
    message(FATAL_ERROR "attn_add_kernel_library(${target}): enable C++ first, with project(... LANGUAGES CXX)")
  endif()
  if(NOT ATTN_MLIR_PYTHON)
    find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)
    set(ATTN_MLIR_PYTHON "${Python3_EXECUTABLE}")
  endif()

  set(name "${target}")
  if(arg_NAME)
    set(name "${arg_NAME}")
  endif()
  set(options)
  foreach(option INPUTS DTYPE DIM VALUE_DIM)
    if(DEFINED arg_${option})
      string(TOLOWER "--${option}" flag)
      string(REPLACE "_" "-" flag "${flag}")
      list(APPEND options "${flag}" "${arg_${option}}")
    endif()
  endforeach()
  if(arg_WRT)
    list(JOIN arg_WRT "+" wrt)
    list(APPEND options --wrt "${wrt}")
  endif()
  if(arg_NO_BACKWARD)
    list(APPEND options --no-backward)
  endif()
  if(arg_DETERMINISTIC)
    list(APPEND options --deterministic)
  endif()

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}.attn")
  file(MAKE_DIRECTORY "${folder}")
  set(library "${folder}/lib${name}.a")
  set(header "${folder}/${name}.h")
  add_custom_command(
    OUTPUT "${library}" "${header}"
    COMMAND
      "${CMAKE_COMMAND}" -E env --modify "PYTHONPATH=path_list_prepend:${ATTN_MLIR_PACKAGES}" "${ATTN_MLIR_PYTHON}" -m attn_mlir.tools.attn_ahead
      "${file}:${attention}" --target "${arg_TARGET}" --name "${name}" -o "${library}" --compiler "${CMAKE_CXX_COMPILER}"
      --depfile "${folder}/${name}.d" ${options}
    DEPENDS "${file}"
    DEPFILE "${folder}/${name}.d"
    COMMENT "Compiling ${attention} of ${arg_SPEC} for ${arg_TARGET}"
    VERBATIM)
  add_custom_target(${target}_kernels DEPENDS "${library}" "${header}")

  add_library(${target} STATIC IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION "${library}" IMPORTED_LINK_INTERFACE_LANGUAGES CXX INTERFACE_INCLUDE_DIRECTORIES "${folder}")
  find_package(Threads REQUIRED)
  target_link_libraries(${target} INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
  if(arg_TARGET STREQUAL "cpu")
    find_package(OpenMP COMPONENTS CXX)
    if(OpenMP_CXX_FOUND)
      target_link_libraries(${target} INTERFACE OpenMP::OpenMP_CXX)
    endif()
  endif()
  add_dependencies(${target} ${target}_kernels)
endfunction()
