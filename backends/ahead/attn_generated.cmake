
# What is above is told by attn-generate; what follows is the same for every library. Options:
#   BUILD_SHARED_LIBS   a shared library in place of a static one
#   ATTN_MLIR_PYTHON    for the CPU, the Python with attn-mlir's requirements, whose compiler makes object files of kernels/*.mlir
#   ATTN_MLIR_PACKAGES  for the CPU, the folder in which the package attn_mlir is
#   ATTN_COMPILER       for GPUs, nvcc or clang
#   ATTN_OPTIMIZE       how the C++ of the host's part is optimised
set(ATTN_OPTIMIZE "-O2" CACHE STRING "how the C++ of the host's part is optimised")
set(folder "${CMAKE_CURRENT_SOURCE_DIR}")
set(made "${CMAKE_CURRENT_BINARY_DIR}/kernels")
file(MAKE_DIRECTORY "${made}")

if(ATTN_LANGUAGE STREQUAL "mlir")
  if(NOT EXISTS "${ATTN_MLIR_PACKAGES}/attn_mlir")
    message(FATAL_ERROR "there is no package attn_mlir in ATTN_MLIR_PACKAGES, '${ATTN_MLIR_PACKAGES}': name the folder with -DATTN_MLIR_PACKAGES=")
  endif()
  if(NOT EXISTS "${ATTN_MLIR_PYTHON}")
    message(FATAL_ERROR "there is no ATTN_MLIR_PYTHON '${ATTN_MLIR_PYTHON}': name the Python that has attn-mlir's requirements")
  endif()
elseif(ATTN_LANGUAGE STREQUAL "cuda")
  find_program(ATTN_COMPILER nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin REQUIRED)
else()
  find_program(ATTN_COMPILER NAMES clang++ clang++-22 clang++-21 clang++-20 clang++-19 clang++-18 HINTS ENV ROCM_PATH PATHS /opt/rocm/llvm
               PATH_SUFFIXES bin REQUIRED)
endif()

add_library(${ATTN_NAME})
set(kernels)  # those of the instance that comes next
set(pairs)

# A source file of kernels, and what its code is called; what else is given are flags.
function(attn_kernel file code)
  get_filename_component(name "${file}" NAME_WLE)
  if(ATTN_LANGUAGE STREQUAL "mlir")
    list(APPEND pairs "${folder}/kernels/${file}" "${code}")
    set(pairs "${pairs}" PARENT_SCOPE)
    list(APPEND kernels "${made}/${name}.o")
  else()
    add_custom_command(
      OUTPUT "${made}/${name}.bin"
      COMMAND "${ATTN_COMPILER}" ${ATTN_KERNEL_FLAGS} ${ARGN} "-I${folder}/include" -o "${made}/${name}.bin" "${folder}/kernels/${file}"
      DEPENDS "${folder}/kernels/${file}" ${headers}
      COMMENT "Compiling ${file} for ${ATTN_TARGET}"
      VERBATIM)
    list(APPEND kernels "${made}/${name}.bin")
  endif()
  set(kernels "${kernels}" PARENT_SCOPE)
endfunction()

# The instance of the kernels before, or without a name what belongs to the API.
function(attn_add source)
  if(pairs)
    set(inputs)
    foreach(each ${pairs})
      if(each MATCHES "\\.mlir$")
        list(APPEND inputs "${each}")
      endif()
    endforeach()
    get_filename_component(name "${source}" NAME_WE)
    add_custom_command(
      OUTPUT ${kernels}
      COMMAND
        "${CMAKE_COMMAND}" -E env --modify "PYTHONPATH=path_list_prepend:${ATTN_MLIR_PACKAGES}" "${ATTN_MLIR_PYTHON}"
        -m attn_mlir.backends.cpu.ahead.objects "${made}" ${pairs}
      DEPENDS ${inputs}
      COMMENT "Compiling the kernels of ${name} for ${ATTN_TARGET}"
      VERBATIM)
    set_source_files_properties(${kernels} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    target_sources(${ATTN_NAME} PRIVATE ${kernels})
  elseif(kernels)
    set_source_files_properties("${source}" PROPERTIES OBJECT_DEPENDS "${kernels}")
  endif()
  target_sources(${ATTN_NAME} PRIVATE "${source}")
  set(kernels "" PARENT_SCOPE)
  set(pairs "" PARENT_SCOPE)
endfunction()
macro(attn_instance name)
  attn_add("${folder}/instances/${name}.cpp")
endmacro()
macro(attn_api)
  attn_add("${folder}/api.cpp")
endmacro()

file(GLOB headers "${folder}/include/*")
include("${folder}/instances.cmake")

target_include_directories(${ATTN_NAME} PUBLIC "${folder}" PRIVATE "${folder}/runtime")
target_compile_features(${ATTN_NAME} PUBLIC cxx_std_17)
target_compile_options(${ATTN_NAME} PRIVATE ${ATTN_OPTIMIZE} ${ATTN_FLAGS})
target_compile_definitions(${ATTN_NAME} PRIVATE "ATTN_CODE_FOLDER=\"${made}\"")
set_target_properties(${ATTN_NAME} PROPERTIES POSITION_INDEPENDENT_CODE ON)
find_package(Threads REQUIRED)
target_link_libraries(${ATTN_NAME} PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
if(ATTN_LANGUAGE STREQUAL "mlir")
  target_link_libraries(${ATTN_NAME} PUBLIC m)
  find_package(OpenMP COMPONENTS CXX)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(${ATTN_NAME} PRIVATE OpenMP::OpenMP_CXX)
  endif()
endif()
