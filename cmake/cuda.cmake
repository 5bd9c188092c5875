# The CUDA plugin, as GUOZHUANG_CUDA says: AUTO builds it where a toolkit is found, ON demands one,
# OFF builds none. Included at the top level (a language is enabled there) after the library, to
# which it adds no dependency: what the library learns here is whether there is a plugin, and the
# build id that the two must share.

set(GUOZHUANG_CUDA_ARCHITECTURES 90 CACHE STRING
  "Compute capabilities of the CUDA plugin: a list, or release for all that the toolkit knows")

# Version, compiler and the headers between library and plugin: a plugin left over from an older
# build does not fit, and is refused.
set(interface
  include/guozhuang/error.hpp include/guozhuang/shape.hpp include/guozhuang/stream.hpp
  include/guozhuang/tensor.hpp include/guozhuang/types.hpp src/device/device.hpp
  src/device/nccl.hpp src/device/plugin.hpp)
list(TRANSFORM interface PREPEND ${PROJECT_SOURCE_DIR}/)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${interface})
set(hashes)
foreach(header ${interface})
  file(SHA256 ${header} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 hash "${hashes} ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE}")
string(SUBSTRING ${hash} 0 12 hash)
set(GUOZHUANG_BUILD_ID
  "${PROJECT_VERSION}-${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION}-${hash}")

# guozhuang_release_architectures(VARIABLE NVCC): those of a release that the toolkit knows. Code
# runs on GPUs of the same major number and a higher minor one, too (103 that of 100, say), but not
# on systems on a chip, which 87 and 110 are; later GPUs run the PTX of the last.
function(guozhuang_release_architectures variable nvcc)
  execute_process(COMMAND ${nvcc} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(architectures)
  foreach(architecture 75 80 86 87 89 90 100 110 120)
    if(known MATCHES "compute_${architecture}(\n|$)")
      list(APPEND architectures ${architecture})
    endif()
  endforeach()
  set(${variable} ${architectures} PARENT_SCOPE)
endfunction()

# guozhuang_enable_cuda(PROBLEM): enables the language, or says why not. Asks nvcc for its version
# first, as one that is too old may not even pass CMake's trial of the compiler, which is fatal.
macro(guozhuang_enable_cuda problem)
  set(needed 12.5)  # the first with cudaGetDriverEntryPointByVersion
  set(${problem})
  if(CMAKE_CUDA_COMPILER)
    set(nvcc ${CMAKE_CUDA_COMPILER})
  elseif(DEFINED ENV{CUDACXX})
    set(nvcc $ENV{CUDACXX})
  else()  # toolkits live where PATH does not lead
    find_program(nvcc nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
      PATH_SUFFIXES bin NO_CACHE)
  endif()
  set(version "of unknown version")
  if(nvcc)
    execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE version ERROR_QUIET)
    string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" version "${version}")
  endif()
  if(NOT nvcc)
    set(${problem} "no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
  elseif(version VERSION_LESS needed)
    set(${problem} "CUDA ${version} found (${nvcc}), ${needed} or newer needed")
  else()
    guozhuang_release_architectures(GUOZHUANG_RELEASE_ARCHITECTURES ${nvcc})
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES ${GUOZHUANG_CUDA_ARCHITECTURES})
      if(CMAKE_CUDA_ARCHITECTURES STREQUAL release)
        list(TRANSFORM GUOZHUANG_RELEASE_ARCHITECTURES APPEND -real
          OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
        list(POP_BACK CMAKE_CUDA_ARCHITECTURES)
        list(GET GUOZHUANG_RELEASE_ARCHITECTURES -1 last)  # also as PTX
        list(APPEND CMAKE_CUDA_ARCHITECTURES ${last})
      endif()
    endif()
    set(ENV{CUDACXX} ${nvcc})  # for check_language, which tries it
    include(CheckLanguage)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      set(${problem} "${nvcc} cannot compile here (CMakeFiles/CMakeError.log says why)")
      unset(CMAKE_CUDA_COMPILER CACHE)  # there may be a better one next time
    else()
      if(CMAKE_VERSION VERSION_LESS 3.26)  # which does not know yet that nvcc speaks C++20
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      endif()
      enable_language(CUDA)
      find_package(CUDAToolkit REQUIRED)
    endif()
  endif()
endmacro()

if(GUOZHUANG_CUDA STREQUAL OFF)
  set(problem "GUOZHUANG_CUDA=OFF")
else()
  guozhuang_enable_cuda(problem)
endif()
if(GUOZHUANG_CUDA STREQUAL ON AND problem)
  message(FATAL_ERROR "GUOZHUANG_CUDA=ON, but ${problem}: put the nvcc of a toolkit that will do "
    "into PATH, or set CMAKE_CUDA_COMPILER")
endif()
if(problem)
  set(GUOZHUANG_WITH_CUDA false)
else()
  set(GUOZHUANG_WITH_CUDA true)
endif()

set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/device/plugin.cpp TARGET_DIRECTORY room_device_host
  APPEND PROPERTY COMPILE_DEFINITIONS
  GUOZHUANG_WITH_CUDA=${GUOZHUANG_WITH_CUDA} GUOZHUANG_BUILD_ID="${GUOZHUANG_BUILD_ID}")

if(GUOZHUANG_WITH_CUDA)
  find_path(GUOZHUANG_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
    DOC "Where nccl.h is: beside the toolkit's headers, or where the system has it")
  set(nccl "with NCCL (${GUOZHUANG_NCCL_INCLUDE}/nccl.h)")
  if(NOT GUOZHUANG_NCCL_INCLUDE)
    set(nccl "without NCCL, as there is no nccl.h")
  endif()
  add_subdirectory(${PROJECT_SOURCE_DIR}/src/device/cuda)
  message(STATUS "CUDA plugin: built by CUDA ${CUDAToolkit_VERSION} for "
    "${CMAKE_CUDA_ARCHITECTURES} (GUOZHUANG_CUDA=${GUOZHUANG_CUDA}), ${nccl}")
else()
  message(STATUS "CUDA plugin: not built: ${problem}")
endif()
