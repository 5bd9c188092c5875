# Where libtorch is, for what is built with it here: tests and examples of bindings/torch, and
# measurements beside PyTorch. The parts are looked for one by one: find_package(Torch) is fatal
# where Torch misses something of its own, and sets flags for all. CMAKE_PREFIX_PATH may name the
# folder of another one.
find_path(GUOZHUANG_TORCH_INCLUDE torch/csrc/autograd/function_hook.h)
find_library(GUOZHUANG_TORCH_LIBRARY torch_cpu)
find_library(GUOZHUANG_C10_LIBRARY c10)
mark_as_advanced(GUOZHUANG_TORCH_INCLUDE GUOZHUANG_TORCH_LIBRARY GUOZHUANG_C10_LIBRARY)
if(GUOZHUANG_TORCH_INCLUDE AND GUOZHUANG_TORCH_LIBRARY AND GUOZHUANG_C10_LIBRARY)
  set(GUOZHUANG_TORCH_PROBLEM "")
else()
  set(GUOZHUANG_TORCH_PROBLEM "no libtorch found (Debian: libtorch-dev)")
endif()

set(GUOZHUANG_WITH_TORCH false)
if(GUOZHUANG_TORCH STREQUAL OFF)
  message(STATUS "libtorch: tests and examples left out: GUOZHUANG_TORCH=OFF")
elseif(NOT GUOZHUANG_TORCH_PROBLEM)
  set(GUOZHUANG_WITH_TORCH true)
  message(STATUS "libtorch: ${GUOZHUANG_TORCH_LIBRARY} (GUOZHUANG_TORCH=${GUOZHUANG_TORCH})")
elseif(GUOZHUANG_TORCH STREQUAL ON)
  message(FATAL_ERROR "GUOZHUANG_TORCH=ON, but ${GUOZHUANG_TORCH_PROBLEM}: install it, or name its "
    "folder in CMAKE_PREFIX_PATH")
else()
  message(STATUS "libtorch: tests and examples left out: ${GUOZHUANG_TORCH_PROBLEM}")
endif()

add_library(guozhuang_libtorch INTERFACE)
if(GUOZHUANG_WITH_TORCH)
  target_include_directories(guozhuang_libtorch SYSTEM INTERFACE ${GUOZHUANG_TORCH_INCLUDE}
    ${GUOZHUANG_TORCH_INCLUDE}/torch/csrc/api/include)
  target_link_libraries(guozhuang_libtorch INTERFACE ${GUOZHUANG_TORCH_LIBRARY}
    ${GUOZHUANG_C10_LIBRARY})
endif()

# What is built with frameworks takes long, and `all` does without it. ./run test --all builds this.
add_custom_target(guozhuang_frameworks)

# guozhuang_add_with_torch(PROGRAM SOURCE...): a program that is built with libtorch. The code that
# counts is libtorch's, and an optimiser would spend a minute on its headers.
function(guozhuang_add_with_torch program)
  add_executable(${program} EXCLUDE_FROM_ALL ${ARGN})
  add_dependencies(guozhuang_frameworks ${program})
  target_compile_options(${program} PRIVATE -O0 -g0)
  target_link_libraries(${program} PRIVATE guozhuang_options guozhuang_libtorch)
endfunction()
