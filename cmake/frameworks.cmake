# Where the frameworks are that bindings are for. What is built with them here are tests, examples
# and measurements beside PyTorch. The parts of libtorch are looked for one by one:
# find_package(Torch) is fatal where Torch misses something of its own, and sets flags for all.
# CMAKE_PREFIX_PATH may name the folder of another one. dlib's package wants the headers of all that
# dlib can use.
find_path(GUOZHUANG_TORCH_INCLUDE torch/csrc/autograd/function_hook.h)
find_library(GUOZHUANG_TORCH_LIBRARY torch_cpu)
find_library(GUOZHUANG_C10_LIBRARY c10)
mark_as_advanced(GUOZHUANG_TORCH_INCLUDE GUOZHUANG_TORCH_LIBRARY GUOZHUANG_C10_LIBRARY)
if(GUOZHUANG_TORCH_INCLUDE AND GUOZHUANG_TORCH_LIBRARY AND GUOZHUANG_C10_LIBRARY)
  set(GUOZHUANG_TORCH_PROBLEM "")
else()
  set(GUOZHUANG_TORCH_PROBLEM "no libtorch found (Debian: libtorch-dev)")
endif()

set(with_torch false)
if(GUOZHUANG_TORCH STREQUAL OFF)
  message(STATUS "libtorch: tests and examples left out: GUOZHUANG_TORCH=OFF")
elseif(NOT GUOZHUANG_TORCH_PROBLEM)
  set(with_torch true)
  message(STATUS "libtorch: ${GUOZHUANG_TORCH_LIBRARY} (GUOZHUANG_TORCH=${GUOZHUANG_TORCH})")
elseif(GUOZHUANG_TORCH STREQUAL ON)
  message(FATAL_ERROR "GUOZHUANG_TORCH=ON, but ${GUOZHUANG_TORCH_PROBLEM}: install it, or name its "
    "folder in CMAKE_PREFIX_PATH")
else()
  message(STATUS "libtorch: tests and examples left out: ${GUOZHUANG_TORCH_PROBLEM}")
endif()

# guozhuang_framework_NAME for each that is there; their names are GUOZHUANG_FRAMEWORKS.
set(GUOZHUANG_FRAMEWORKS)
if(with_torch)
  list(APPEND GUOZHUANG_FRAMEWORKS torch)
  add_library(guozhuang_framework_torch INTERFACE)
  target_include_directories(guozhuang_framework_torch SYSTEM INTERFACE ${GUOZHUANG_TORCH_INCLUDE}
    ${GUOZHUANG_TORCH_INCLUDE}/torch/csrc/api/include)
  target_link_libraries(guozhuang_framework_torch INTERFACE ${GUOZHUANG_TORCH_LIBRARY}
    ${GUOZHUANG_C10_LIBRARY})
endif()

find_path(GUOZHUANG_DLIB_INCLUDE dlib/dnn.h)
find_library(GUOZHUANG_DLIB_LIBRARY dlib)
mark_as_advanced(GUOZHUANG_DLIB_INCLUDE GUOZHUANG_DLIB_LIBRARY)
if(GUOZHUANG_DLIB_INCLUDE AND GUOZHUANG_DLIB_LIBRARY)
  list(APPEND GUOZHUANG_FRAMEWORKS dlib)
  add_library(guozhuang_framework_dlib INTERFACE)
  target_include_directories(guozhuang_framework_dlib SYSTEM INTERFACE ${GUOZHUANG_DLIB_INCLUDE})
  target_link_libraries(guozhuang_framework_dlib INTERFACE ${GUOZHUANG_DLIB_LIBRARY})
endif()

find_package(Eigen3 QUIET NO_MODULE)
if(TARGET Eigen3::Eigen)
  list(APPEND GUOZHUANG_FRAMEWORKS eigen)
  add_library(guozhuang_framework_eigen INTERFACE)
  target_link_libraries(guozhuang_framework_eigen INTERFACE Eigen3::Eigen)
endif()

# What is built with frameworks takes long, and `all` does without it. ./run test --all builds this.
add_custom_target(guozhuang_frameworks)

# guozhuang_add_with(FRAMEWORK PROGRAM SOURCE...): a program that is built with that framework. The
# code that counts is the framework's, and an optimiser would spend a minute on its headers.
function(guozhuang_add_with framework program)
  add_executable(${program} EXCLUDE_FROM_ALL ${ARGN})
  add_dependencies(guozhuang_frameworks ${program})
  target_compile_options(${program} PRIVATE -O0 -g0)
  target_link_libraries(${program} PRIVATE guozhuang_options guozhuang_framework_${framework})
endfunction()
